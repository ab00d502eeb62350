// Quantization arithmetic of one element: scalar, inline, the same for host and device.
//
// Every function is float32 throughout. The NumPy twin is onnxfq/numerics.py; both give the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "onnxfq/host_device.h"

namespace onnxfq {

// Which neighbour of the grid a value between two goes to. The first four differ for halves only:
// to the even neighbour (ONNX, TensorRT, torch), up, away from zero, towards zero.
enum class Rounding { kHalfEven, kHalfUp, kHalfAway, kHalfDown, kFloor, kCeil, kTruncate };

// x / scale (ONNX, TensorRT), or x * (1 / scale) with both steps rounded to float32 (torch).
enum class Arithmetic { kDivide, kReciprocal };

FQ_HD FQ_INLINE uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

FQ_HD FQ_INLINE float float_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

constexpr uint32_t kInfinityBits = 0x7f800000u;

// What to hand to in_steps as `divisor`; made once per scale.
template <Arithmetic A>
FQ_HD FQ_INLINE float divisor_of(float scale) {
  return A == Arithmetic::kDivide ? scale : 1.0f / scale;
}

// x measured in steps of the grid, not yet an integer.
template <Arithmetic A>
FQ_HD FQ_INLINE float in_steps(float x, float divisor) {
  return A == Arithmetic::kDivide ? x / divisor : x * divisor;
}

// v limited to [low, high]; NaN stays NaN, because both comparisons are false for it.
FQ_HD FQ_INLINE float clamp(float v, float low, float high) {
  v = v < low ? low : v;
  return v > high ? high : v;
}

// 1 or -1, the sign of v; added to a truncated v where its rest asks for the next integer.
FQ_HD FQ_INLINE float away_from_zero(float v) { return std::copysign(1.0f, v); }

// v as an integer-valued float, never -0. Requires |v| <= 2^22.
template <Rounding R>
FQ_HD FQ_INLINE float round_to_integer(float v) {
  if (R == Rounding::kHalfEven) {
    // Between 2^23 and 2^24 floats are exactly the integers, so adding 1.5 * 2^23 rounds the fraction
    // away in the hardware's rounding mode, halves to even, and subtracting it again is exact; -0 comes
    // back as +0. Unlike rint this vectorises on every target.
    constexpr float kIntegersOnly = 12582912.0f;
    return (v + kIntegersOnly) - kIntegersOnly;
  }
  // Literally floor(v + 0.5) in float32, as Horizon defines it: the sum itself rounds, and the largest
  // float below a half goes up to 1.
  if (R == Rounding::kHalfUp) return std::floor(v + 0.5f) + 0.0f;
  if (R == Rounding::kFloor) return std::floor(v) + 0.0f;
  if (R == Rounding::kCeil) return std::ceil(v) + 0.0f;
  const float whole = std::trunc(v);
  if (R == Rounding::kTruncate) return whole + 0.0f;
  const float rest = std::fabs(v - whole);  // exact, so a half is a half
  const bool next = R == Rounding::kHalfAway ? rest >= 0.5f : rest > 0.5f;
  return whole + (next ? away_from_zero(v) : 0.0f) + 0.0f;
}

// Maps x to a grid of integers times scale:
//
//   zero point an integer     y = scale * (clamp(round(x / scale), qmin - zp, qmax - zp) + 0)
//   zero point a fraction     y = scale * (clamp(round(x / scale + zp), qmin, qmax) - zp)
//
// Both are scale * (round(clamp(x / scale + offset, low, high)) - offset), with offset 0 in the first.
// Clamping first gives the same, since rounding is monotonic and leaves the integers low and high where
// they are, and it brings the value into the range round_to_integer asks for.
template <Rounding R, Arithmetic A>
struct IntegerQuantizer {
  float scale;
  float divisor;
  float offset;
  float low;
  float high;

  // fraction: 1 when zero_point may have one, else 0.
  FQ_HD FQ_INLINE IntegerQuantizer(float s, float zero_point, float fraction, float qmin, float qmax)
      : scale(s),
        divisor(divisor_of<A>(s)),
        offset(zero_point * fraction),
        low(qmin - (zero_point - offset)),
        high(qmax - (zero_point - offset)) {}

  FQ_HD FQ_INLINE float operator()(float x) const {
    return scale * (round_to_integer<R>(clamp(in_steps<A>(x, divisor) + offset, low, high)) - offset);
  }
};

// An int32 that sorts as the float does (NaN excluded): negative floats have their magnitude bits
// flipped. Integer minimum and maximum vectorise, those of floats do not without fast-math.
FQ_HD FQ_INLINE int32_t order_key(uint32_t bits) {
  const int32_t key = static_cast<int32_t>(bits);
  return key ^ ((key >> 31) & 0x7fffffff);
}

// The inverse of order_key, which is its own inverse.
FQ_HD FQ_INLINE float float_from_order_key(int32_t key) {
  return float_from_bits(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
}

}  // namespace onnxfq
