// Quantization arithmetic of one element: scalar, inline, the same for host and device.
//
// Every function is float32 throughout. The NumPy twin is onnxfq/numerics/affine.py; both give the same bits.
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

// Measures x in steps of the grid; the result is not rounded. Made once per scale.
struct Divide {
  float scale;

  FQ_HD FQ_INLINE explicit Divide(float s) : scale(s) {}
  FQ_HD FQ_INLINE float operator()(float x) const { return x / scale; }
};

struct MultiplyByReciprocal {
  float reciprocal;

  FQ_HD FQ_INLINE explicit MultiplyByReciprocal(float scale) : reciprocal(FQ_RECIPROCAL(scale)) {}
  FQ_HD FQ_INLINE float operator()(float x) const { return x * reciprocal; }
};

// x / scale where a division is many instructions and a fused multiplication and addition is one.
//
// The product with the reciprocal is off by a place at most; one correction by its rest rounds it rightly. Both
// operands are brought near 1 first, so that neither the rest nor the reciprocal leaves the range of floats. For
// 2^-40 <= |result| <= 2^40 it is the quotient to the bit: the cases where the quotient is nearest to the middle
// of two floats, which are all that could round wrongly, were gone through for every mantissa of the scale.
// Outside it is smaller or larger too, and has the quotient's sign unless it is 0: not the same bits, but the same
// magnitude after rounding to an integer or to a small float, halves going to even. The rest of a large one may be NaN,
// and the rest of a small one loses places.
struct DivideFused {
  float to_unit;
  float divisor;
  float reciprocal;

  FQ_HD FQ_INLINE explicit DivideFused(float scale) {
    // 2^-exponent of scale, at most 2^126: the sum of the exponent fields of a number and its power of two is 254.
    const uint32_t exponent = float_bits(scale) & kInfinityBits;
    constexpr uint32_t kSmallest = 1u << 23;
    to_unit = exponent == 254u << 23 ? 0x1.0p-127f
                                     : float_from_bits((254u << 23) - (exponent > kSmallest ? exponent : kSmallest));
    divisor = scale * to_unit;
    reciprocal = FQ_RECIPROCAL(divisor);
  }

  FQ_HD FQ_INLINE float operator()(float x) const {
    const float near_one = x * to_unit;
    const float quotient = near_one * reciprocal;
    const float rest = std::fma(-quotient, divisor, near_one);
    const float corrected = std::fma(rest, reciprocal, quotient);
    return std::fabs(quotient) <= 0x1.0p40f ? corrected : quotient;
  }
};

// v limited to [low, high]; NaN stays NaN, because both comparisons are false for it. Which zero comes back where v
// and an end are zeros of different signs is not said.
FQ_HD FQ_INLINE float clamp(float v, float low, float high) {
#if FQ_DEVICE_CODE >= 800
  // One instruction for each end in place of two.
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(v) : "f"(low));
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(v) : "f"(high));
  return v;
#else
  v = v < low ? low : v;
  return v > high ? high : v;
#endif
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

// v on the multiples of a power of two, by a rounding to integers. step: its bits, 2^-100 to 2^100. Requires
// |v| <= 2^22 steps.
template <typename Round>
FQ_HD FQ_INLINE float round_to_steps(const Round& round, float v, uint32_t step) {
  const float inverse = float_from_bits((254u << 23) - step);
  return round(v * inverse) * float_from_bits(step);
}

// round_to_integer as a value: of a rounding that the compiler knows, or of one that is known when it runs.
// to_steps: the same for multiples of a power of two, see round_to_steps.
template <Rounding R>
struct RoundTo {
  FQ_HD FQ_INLINE float operator()(float v) const { return round_to_integer<R>(v); }
  FQ_HD FQ_INLINE float to_steps(float v, uint32_t step) const {
    if (R != Rounding::kHalfEven) return round_to_steps(*this, v, step);
    // As in round_to_integer, by 1.5 * 2^23 steps.
    const float multiples_only = float_from_bits((step + (23u << 23)) | 0x00400000u);
    return (v + multiples_only) - multiples_only;
  }
};

struct RoundToAny {
  Rounding rounding;

  FQ_HD FQ_INLINE float operator()(float v) const {
    switch (rounding) {
      case Rounding::kHalfEven: return round_to_integer<Rounding::kHalfEven>(v);
      case Rounding::kHalfUp: return round_to_integer<Rounding::kHalfUp>(v);
      case Rounding::kHalfAway: return round_to_integer<Rounding::kHalfAway>(v);
      case Rounding::kHalfDown: return round_to_integer<Rounding::kHalfDown>(v);
      case Rounding::kFloor: return round_to_integer<Rounding::kFloor>(v);
      case Rounding::kCeil: return round_to_integer<Rounding::kCeil>(v);
      case Rounding::kTruncate: break;
    }
    return round_to_integer<Rounding::kTruncate>(v);
  }
  FQ_HD FQ_INLINE float to_steps(float v, uint32_t step) const { return round_to_steps(*this, v, step); }
};

// Maps x to a grid of integers times scale:
//
//   zero point an integer     y = scale * (clamp(round(x / scale), qmin - zp, qmax - zp) + 0)
//   zero point a fraction     y = scale * (clamp(round(x / scale + zp), qmin, qmax) - zp)
//
// Both are scale * (round(clamp(x / scale + offset, low, high)) - offset), with offset 0 in the first.
// Clamping first gives the same, since rounding is monotonic and leaves the integers low and high where
// they are, and it brings the value into the range round_to_integer asks for.
//
// Fractions: whether zero points may be fractions. The same comes out for integers with it, in two steps more.
template <typename Round, typename InSteps, bool Fractions = true>
struct IntegerQuantizer {
  Round round;
  InSteps in_steps;
  float scale;
  float offset;
  float low;
  float high;

  // fraction: 1 when zero_point has one, else 0.
  FQ_HD FQ_INLINE IntegerQuantizer(Round r, float s, float zero_point, float fraction, float qmin, float qmax)
      : round(r),
        in_steps(s),
        scale(s),
        offset(zero_point * fraction),
        low(qmin - (zero_point - offset)),
        high(qmax - (zero_point - offset)) {}

  // x in steps from the zero point, on the grid.
  FQ_HD FQ_INLINE float steps(float x) const {
    if (!Fractions) return round(clamp(in_steps(x), low, high));
    return round(clamp(in_steps(x) + offset, low, high)) - offset;
  }

  FQ_HD FQ_INLINE float operator()(float x) const { return scale * steps(x); }

  // Whether x rounds to a number of the grid without being clamped; false for NaN.
  FQ_HD FQ_INLINE bool inside(float x) const {
    const float rounded = round(clamp(in_steps(x) + offset, low - 1.0f, high + 1.0f));
    return (rounded >= low) & (rounded <= high);
  }
};

// An int32 that sorts as the float does (NaN excluded): negative floats have their magnitude bits
// flipped. Compilers vectorise integer minimum and maximum, but not the float ones without fast-math.
FQ_HD FQ_INLINE int32_t order_key(uint32_t bits) {
  const int32_t key = static_cast<int32_t>(bits);
  return key ^ ((key >> 31) & 0x7fffffff);
}

// The inverse of order_key, which is its own inverse.
FQ_HD FQ_INLINE float float_from_order_key(int32_t key) {
  return float_from_bits(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
}

}  // namespace onnxfq
