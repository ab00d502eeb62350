// Division by a number that stays the same over a launch: a multiplication and a shift.
//
// For 2^(l-1) < d <= 2^l and n < 2^b: n / d = floor(n * m / 2^(b + l)) with m = floor(2^(b + l) / d) + 1, since
// m * d exceeds 2^(b + l) by 2^l at most (Granlund and Montgomery 1994). b is 63, or 31 for numbers of 32 bits: 2 n fits
// into a word, and the upper word of 2 n * m is n * m / 2^b.
#pragma once

#include <cstdint>
#include <type_traits>

#include "onnxfq/host_device.h"

namespace onnxfq {
namespace cuda {

// Index: int64_t or int32_t.
template <typename Index>
class Divider {
  using Unsigned = std::make_unsigned_t<Index>;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(Index)) - 1;

 public:
  // By more than any number: 0.
  Divider() = default;

  // divisor: 1 ... 2^(b - 1).
  explicit Divider(int64_t divisor) : divisor_(static_cast<Unsigned>(divisor)) {
    int bits = 0;
    while ((Unsigned{1} << bits) < divisor_) ++bits;
    Unsigned quotient = 1 / divisor_;
    Unsigned rest = 1 % divisor_;
    for (int i = 0; i < kBits + bits; ++i) {  // 2^(b + bits) / divisor, digit by digit
      rest *= 2;
      quotient *= 2;
      if (rest >= divisor_) {
        rest -= divisor_;
        ++quotient;
      }
    }
    multiplier_ = quotient + 1;
    shift_ = bits;
  }

  FQ_HD FQ_INLINE Index divisor() const { return static_cast<Index>(divisor_); }

  // n / divisor, for n >= 0.
  FQ_HD FQ_INLINE Index operator()(Index n) const {
    return static_cast<Index>(high_product(2 * static_cast<Unsigned>(n), multiplier_) >> shift_);
  }

 private:
  static FQ_HD FQ_INLINE uint64_t high_product(uint64_t a, uint64_t b) { return FQ_HIGH_PRODUCT(a, b); }
  static FQ_HD FQ_INLINE uint32_t high_product(uint32_t a, uint32_t b) {
    return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
  }

  Unsigned divisor_ = 0;
  Unsigned multiplier_ = 0;
  int shift_ = 0;
};

}  // namespace cuda
}  // namespace onnxfq
