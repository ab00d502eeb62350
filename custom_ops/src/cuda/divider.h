// Division by a number that stays the same over a launch: a multiplication and a shift.
//
// For 2^(l-1) < d <= 2^l and n < 2^63: n / d = floor(n * m / 2^(63 + l)) with m = floor(2^(63 + l) / d) + 1, since
// m * d exceeds 2^(63 + l) by 2^l at most (Granlund and Montgomery 1994).
#pragma once

#include <cstdint>

#include "onnxfq/host_device.h"

namespace onnxfq {
namespace cuda {

class Divider {
 public:
  Divider() = default;

  // divisor: 1 ... 2^62.
  explicit Divider(int64_t divisor) : divisor_(static_cast<uint64_t>(divisor)) {
    if (divisor_ == 1) return;
    int bits = 1;
    while ((uint64_t{1} << bits) < divisor_) ++bits;
    uint64_t quotient = 0;
    uint64_t rest = 1;
    for (int i = 0; i < 63 + bits; ++i) {  // 2^(63 + bits) / divisor, digit by digit
      rest *= 2;
      quotient *= 2;
      if (rest >= divisor_) {
        rest -= divisor_;
        ++quotient;
      }
    }
    multiplier_ = quotient + 1;
    shift_ = bits - 1;
  }

  FQ_HD FQ_INLINE int64_t divisor() const { return static_cast<int64_t>(divisor_); }

  // n / divisor, for n >= 0.
  FQ_HD FQ_INLINE int64_t operator()(int64_t n) const {
    if (divisor_ == 1) return n;
    return static_cast<int64_t>(FQ_HIGH_PRODUCT(static_cast<uint64_t>(n), multiplier_) >> shift_);
  }

 private:
  uint64_t divisor_ = 1;
  uint64_t multiplier_ = 0;
  int shift_ = 0;
};

}  // namespace cuda
}  // namespace onnxfq
