// The least and the largest of finite values that come in words: one float32 or two 16-bit floats each, which newer
// GPUs compare two at a time.
#pragma once

#include <cmath>

#include "packets.h"

namespace onnxfq {
namespace cuda {

// Whether this code may take the larger of two 16-bit floats in pairs, and whether it may test bfloat16 in pairs;
// FQ_ASM: instructions for such code.
#if FQ_DEVICE_CODE >= 800
constexpr bool kPaired = true;
#define FQ_ASM(...) asm(__VA_ARGS__)
#else
constexpr bool kPaired = false;
#define FQ_ASM(...)
#endif
constexpr bool kPairedTests = FQ_DEVICE_CODE >= 900;

template <ElementType T>
class RangeOfWords {
 public:
  // word: without NaN. Which zero is the less is not said.
  FQ_HD FQ_INLINE void add(uint32_t word) {
    if constexpr (kPaired && T == ElementType::kFloat16) {
      FQ_ASM("min.f16x2 %0, %0, %1;" : "+r"(least_) : "r"(word));
      FQ_ASM("max.f16x2 %0, %0, %1;" : "+r"(most_) : "r"(word));
    } else if constexpr (kPaired && T == ElementType::kBfloat16) {
      FQ_ASM("min.bf16x2 %0, %0, %1;" : "+r"(least_) : "r"(word));
      FQ_ASM("max.bf16x2 %0, %0, %1;" : "+r"(most_) : "r"(word));
    } else {
      FQ_UNROLL
      for (int k = 0; k < kElementsOfWord<T>; ++k) add_value(element_of<T>(word, k));
    }
  }

  // x: no NaN.
  FQ_HD FQ_INLINE void add_value(float x) {
    low_ = std::fmin(low_, x);
    high_ = std::fmax(high_, x);
  }

  FQ_HD FQ_INLINE float low() const {
    float found = low_;
    FQ_UNROLL
    for (int k = 0; k < kElementsOfWord<T>; ++k) found = std::fmin(found, element_of<T>(least_, k));
    return found;
  }
  FQ_HD FQ_INLINE float high() const {
    float found = high_;
    FQ_UNROLL
    for (int k = 0; k < kElementsOfWord<T>; ++k) found = std::fmax(found, element_of<T>(most_, k));
    return found;
  }

 private:
  // Infinity in each place of a word.
  static constexpr uint32_t kInfinities = T == ElementType::kFloat32   ? kInfinityBits
                                          : T == ElementType::kFloat16 ? 0x7c007c00u
                                                                       : 0x7f807f80u;
  static constexpr uint32_t kSigns = T == ElementType::kFloat32 ? kSignBit : 0x80008000u;

  uint32_t least_ = kInfinities;
  uint32_t most_ = kInfinities | kSigns;
  float low_ = float_from_bits(kInfinityBits);
  float high_ = float_from_bits(kInfinityBits | kSignBit);
};

// Whether all values of words are 0 or have a magnitude from `least` to below `end`. These are bits of float32; a
// bfloat16 has the upper half of them.
template <ElementType T, uint32_t least, uint32_t end>
class AllWithin {
 public:
  FQ_HD FQ_INLINE void add(uint32_t word) {
    if constexpr (kPairedTests && T == ElementType::kBfloat16) {
      uint32_t magnitudes = 0;  // not by `and`: the compiler makes this instruction a part of the two below
      FQ_ASM("abs.bf16x2 %0, %1;" : "=r"(magnitudes) : "r"(word));
      uint32_t small = 0;  // all ones where a magnitude is less
      FQ_ASM("set.lt.u32.bf16x2 %0, %1, %2;" : "=r"(small) : "r"(magnitudes), "r"((least >> 16) * 0x10001u));
      small_ |= small & word;
      FQ_ASM("max.NaN.bf16x2 %0, %0, %1;" : "+r"(most_) : "r"(magnitudes));
    } else {
      FQ_UNROLL
      for (int k = 0; k < kElementsOfWord<T>; ++k) {
        const uint32_t magnitude = float_bits(element_of<T>(word, k)) & kMagnitudeMask;
        within_ &= (magnitude - least < end - least) | (magnitude == 0);  // wraps around below `least`
      }
    }
  }

  FQ_HD FQ_INLINE bool result() const {
    return within_ & ((small_ & 0x7fff7fffu) == 0) & ((most_ & 0xffffu) < end >> 16) & (most_ >> 16 < end >> 16);
  }

 private:
  bool within_ = true;
  uint32_t small_ = 0;
  uint32_t most_ = 0;
};

// Whether all values of words are finite.
template <ElementType T>
class AllFinite {
 public:
  FQ_HD FQ_INLINE void add(uint32_t word) {
    if constexpr (kPaired && T == ElementType::kFloat16) {
      // A value times 0 is 0, unless it is not finite: NaN then, which stays. The multiplier has nothing else to do.
      FQ_ASM("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(products_) : "r"(word), "r"(0));
    } else {
      FQ_UNROLL
      for (int k = 0; k < kElementsOfWord<T>; ++k) {
        finite_ &= (float_bits(element_of<T>(word, k)) & kMagnitudeMask) < kInfinityBits;
      }
    }
  }

  FQ_HD FQ_INLINE bool result() const { return finite_ & ((products_ & 0x7fff7fffu) == 0); }

 private:
  bool finite_ = true;
  uint32_t products_ = 0;
};

}  // namespace cuda
}  // namespace onnxfq

#undef FQ_ASM
