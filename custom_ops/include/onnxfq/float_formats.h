// Grids of small floats: float8, float6, float4, and the power-of-two scale e8m0. Scalar, inline.
//
//   value  = sign * mantissa * step,   step = 2^(max(exponent(value), min_exponent) - mantissa_bits)
//
// Below 2^min_exponent the step stays what it is there: those are the subnormal numbers. A step is a power
// of two, so measuring a value in steps and going back are exact, and one rounding to an integer is the
// only rounding there is. The NumPy twin is onnxfq/numerics/rounding.py; both give the same bits.
#pragma once

#include "onnxfq/numeric_core.h"

namespace onnxfq {

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kExponentBits = 0x7f800000u;
constexpr int kFloat32MantissaBits = 23;
constexpr int kFloat32Bias = 127;

// A format, as the numbers its arithmetic needs.
struct FloatFormat {
  float qmax;           // largest finite value
  int mantissa_bits;
  int min_exponent;     // exponent of the smallest normal number: 1 - bias
  float beyond;         // result of an overflow that does not saturate: infinity, NaN, or qmax for neither
  float zero_identity;  // -0 where the format has -0 (v + -0 is v), +0 elsewhere (-0 + 0 is +0)
};

// Exponent field of v's step, still in place: 2^(max(exponent, min_exponent) - mantissa_bits) as float32.
FQ_HD FQ_INLINE uint32_t step_bits(float v, uint32_t smallest_normal_bits, uint32_t mantissa_bits) {
  const uint32_t exponent = float_bits(v) & kExponentBits;
  return (exponent > smallest_normal_bits ? exponent : smallest_normal_bits) -
         (mantissa_bits << kFloat32MantissaBits);
}

// v on the grid of a format. limit: largest magnitude that is rounded; a larger one, infinity included,
// is that. With limit qmax values saturate; with 2 qmax those that round beyond qmax become `beyond`. The result has
// the sign of `with_sign`, which is v's; v itself may be a zero that has lost it.
//
// Saturates: limit is qmax. The same comes out without it, in three steps more.
template <bool Saturates = false, typename Round>
FQ_HD FQ_INLINE float round_to_float_grid(const Round& round, float v, float with_sign, const FloatFormat& format,
                                           float limit) {
  const float limited = clamp(v, -limit, limit);
  const uint32_t smallest_normal = static_cast<uint32_t>(kFloat32Bias + format.min_exponent) << kFloat32MantissaBits;
  const uint32_t step = step_bits(limited, smallest_normal, static_cast<uint32_t>(format.mantissa_bits));
  const float rounded = round.to_steps(limited, step);
  // round_to_integer loses the sign of zero.
  const uint32_t sign = float_bits(with_sign) & kSignBit;
  const float signed_result = float_from_bits(float_bits(rounded) | sign);
  if (Saturates) return signed_result + format.zero_identity;
  const float beyond = float_from_bits(float_bits(format.beyond) | sign);
  return (rounded > format.qmax || rounded < -format.qmax ? beyond : signed_result) + format.zero_identity;
}

// Maps x to the grid of a small float times scale: y = scale * round(x / scale).
template <typename Round, typename InSteps, bool Saturates = false>
struct FloatQuantizer {
  Round round;
  InSteps in_steps;
  FloatFormat format;
  float limit;
  float scale;

  FQ_HD FQ_INLINE FloatQuantizer(Round r, float s, const FloatFormat& f, float l)
      : round(r), in_steps(s), format(f), limit(l), scale(s) {}

  // x in steps, on the grid.
  FQ_HD FQ_INLINE float steps(float x) const {
    return round_to_float_grid<Saturates>(round, in_steps(x), x, format, limit);
  }

  FQ_HD FQ_INLINE float operator()(float x) const { return scale * steps(x); }

  // Whether x is within the largest numbers of the grid; false for NaN.
  FQ_HD FQ_INLINE bool inside(float x) const { return std::fabs(in_steps(x)) <= format.qmax; }
};

// The format of the scales of NVFP4.
FQ_HD FQ_INLINE FloatFormat float8e4m3fn() { return {448.0f, 3, -6, float_from_bits(0x7fc00000u), -0.0f}; }

// 2^exponent, a number of e8m0, whose exponents are -127 ... 127. 2^-127 is subnormal in float32.
FQ_HD FQ_INLINE float e8m0_value(int exponent) {
  const int held = exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
  return held == -127 ? float_from_bits(0x00400000u)
                      : float_from_bits(static_cast<uint32_t>(held + kFloat32Bias) << kFloat32MantissaBits);
}

}  // namespace onnxfq
