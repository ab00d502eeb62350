// Quantization arithmetic of one element: scalar, inline, the same for host and device.
//
// Every function is float32 throughout. The NumPy twin is onnxfq/numerics.py; both give the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "onnxfq/host_device.h"

namespace onnxfq {

// Where halves go: to the even neighbour (ONNX, TensorRT, torch), or up, floor(v + 0.5).
enum class Rounding { kHalfEven, kHalfUp };

// x / scale (ONNX, TensorRT), or x * (1 / scale) with both steps rounded to float32 (torch).
enum class Arithmetic { kDivide, kReciprocal };

// The integers a type can hold, as floats: exact up to 24 bits.
struct Grid {
  float qmin;
  float qmax;
};

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

// v as an integer-valued float, never -0. Requires |v| <= 2^22.
template <Rounding R>
FQ_HD FQ_INLINE float round_to_integer(float v) {
  if (R == Rounding::kHalfUp) return std::floor(v + 0.5f) + 0.0f;
  // Between 2^23 and 2^24 floats are exactly the integers, so adding 1.5 * 2^23 rounds the fraction
  // away in the hardware's rounding mode, halves to even, and subtracting it again is exact; -0 comes
  // back as +0. Unlike rint this vectorises on every target.
  constexpr float kIntegersOnly = 12582912.0f;
  return (v + kIntegersOnly) - kIntegersOnly;
}

// Value of x on the grid: scale * (clamp(round(x / scale), qmin - zp, qmax - zp) + 0).
//
// low, high: qmin - zero_point, qmax - zero_point. Clamping first gives the same, since rounding is
// monotonic and leaves the integers low and high where they are, and it brings v into the range
// round_to_integer asks for.
template <Rounding R, Arithmetic A>
FQ_HD FQ_INLINE float fake_quantize(float x, float scale, float divisor, float low, float high) {
  return scale * round_to_integer<R>(clamp(in_steps<A>(x, divisor), low, high));
}

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
