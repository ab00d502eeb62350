// Scale and zero point of a block from the values in it: scalar, inline.
//
// The range of a block spans its finite values and 0. Every scale is finite and positive, and so is every
// number of its grid finite: a scale that underflows becomes the smallest float32, one above `largest_scale`
// becomes that. The NumPy twin is onnxfq/numerics/block_scales.py; both give the same bits.
#pragma once

#include "onnxfq/float_formats.h"

namespace onnxfq {

// float32   symmetric: max(rmax / qmax, rmin / qmin); else (rmax - rmin) / (qmax - qmin), zero point
//           round(qmin - rmin / scale), as ONNX DynamicQuantizeLinear. 1 for a range of zero width.
// e8m0      OCP MX v1.0: 2^(floor(log2(amax)) - emax), times the value of an element's last place for integers.
// e4m3      NVFP4: round_e4m3(amax / qmax / global_scale) * global_scale, the first factor at least 2^-9.
enum class ScaleType { kFloat32, kE8m0, kE4m3 };

struct ScaleRule {
  ScaleType type;
  bool symmetric;
  bool by_magnitude;  // symmetric, and the largest magnitude gives the scale: both signs reach equally far
  float qmin;
  float qmax;
  int element_exponent;  // e8m0: emax of a float element
  float element_step;    // e8m0: 1 for floats; for integers of n bits 2^-(n - 2), so that they are below 2
  float largest_scale;   // the largest with which every number of the grid is finite
  // e4m3: the format of the scales. A constant known to the compiler costs seven times as much: GCC folds it into
  // the branches of the clamps, which it then makes no vector code of.
  FloatFormat format;
};

struct ScaleAndZeroPoint {
  float scale;
  float zero_point;
};

constexpr float kLargestFloat = 3.40282346638528859812e+38f;
constexpr float kSmallestFloat = 0x1.0p-149f;

// The largest scale with which `widest` steps are finite.
FQ_HD FQ_INLINE float largest_scale(float widest) {
  const float scale = kLargestFloat / widest;
  // The quotient may have been rounded up: then one place lower.
  return scale * widest > kLargestFloat ? float_from_bits(float_bits(scale) - 1) : scale;
}

// The order key of a value for the range, 0 for NaN and infinities: see order_key.
FQ_HD FQ_INLINE int32_t finite_order_key(float x) {
  const uint32_t bits = float_bits(x);
  return (bits & kExponentBits) == kExponentBits ? 0 : order_key(bits);
}

// The magnitude of a value as bits, which sort as it does; 0 for NaN and infinities.
FQ_HD FQ_INLINE int32_t finite_magnitude(float x) {
  const uint32_t bits = float_bits(x) & ~kSignBit;
  return bits >= kExponentBits ? 0 : static_cast<int32_t>(bits);
}

FQ_HD FQ_INLINE float limited_scale(float scale, float largest) {
  return clamp(scale, kSmallestFloat, largest);
}

// The range rmin <= 0 <= rmax to scale and zero point, ScaleType::kFloat32.
FQ_HD FQ_INLINE ScaleAndZeroPoint asymmetric_scale(float rmin, float rmax, const ScaleRule& rule) {
  if (rmin == rmax) {
    const float zero_point = clamp(0.0f, rule.qmin, rule.qmax);
    return {1.0f, zero_point};
  }
  const float scale = limited_scale((rmax - rmin) / (rule.qmax - rule.qmin), rule.largest_scale);
  return {scale, round_to_integer<Rounding::kHalfEven>(clamp(rule.qmin - rmin / scale, rule.qmin, rule.qmax))};
}

// The range rmin <= 0 <= rmax to the scale whose grid holds both ends, zero point 0, ScaleType::kFloat32.
FQ_HD FQ_INLINE float two_sided_scale(float rmin, float rmax, const ScaleRule& rule) {
  const float above = rmax / rule.qmax;
  const float below = rmin / rule.qmin;
  return rmin == rmax ? 1.0f : limited_scale(above > below ? above : below, rule.largest_scale);
}

// The scale of a block whose largest magnitude is amax, for rules by magnitude. global_scale is read for kE4m3.
template <ScaleType T>
FQ_HD FQ_INLINE float symmetric_scale(float amax, const ScaleRule& rule, float global_scale) {
  if (T == ScaleType::kE8m0) {
    // floor(log2) is the exponent; subnormals have a lower one, and e8m0 ends at -127 in any case.
    const int exponent = static_cast<int>(float_bits(amax) >> kFloat32MantissaBits) - kFloat32Bias;
    return e8m0_value(exponent - rule.element_exponent) * rule.element_step;
  }
  const float scale = amax / rule.qmax;
  if (T == ScaleType::kFloat32) return amax == 0.0f ? 1.0f : limited_scale(scale, rule.largest_scale);
  const float ratio = scale / global_scale;
  const float rounded =
      round_to_float_grid(RoundTo<Rounding::kHalfEven>(), ratio, ratio, rule.format, rule.format.qmax);
  const float positive = rounded < 0x1.0p-9f ? 0x1.0p-9f : rounded;
  return limited_scale(positive * global_scale, rule.largest_scale);
}

// The global scale of NVFP4: the block of the largest value gets the largest e4m3 number.
FQ_HD FQ_INLINE float global_scale_of(float amax, const ScaleRule& rule) {
  return amax == 0.0f ? 1.0f : limited_scale(amax / (rule.format.qmax * rule.qmax), kLargestFloat);
}

}  // namespace onnxfq
