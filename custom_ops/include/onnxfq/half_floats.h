// float16 and bfloat16, the other types of x than float32: to float32 and back, on their bits.
//
// Arithmetic is float32 in any case; the way back rounds once, halves to even. Written on integers, without a
// compiler's half type, so that every compiler vectorises it. GPUs have instructions for it, which give the same
// bits except for NaN: it stays NaN, without its sign and payload.
#pragma once

#include "onnxfq/numeric_core.h"

namespace onnxfq {

FQ_HD FQ_INLINE float float_from_bfloat16(uint16_t half) { return float_from_bits(static_cast<uint32_t>(half) << 16); }

FQ_HD FQ_INLINE uint16_t bfloat16_from_float(float x) {
#if FQ_DEVICE_CODE >= 800
  uint16_t half;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#else
  const uint32_t bits = float_bits(x);
  // Adds a half of the last place kept, or just less than it when that place is even. NaN would overflow
  // into -0: it keeps its top bits and becomes quiet.
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool nan = (bits & 0x7fffffffu) > kInfinityBits;
  return static_cast<uint16_t>((nan ? bits | 0x00400000u : rounded) >> 16);
#endif
}

//   float16   s eeeee mmmmmmmmmm                       exponent bias 15
//   float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm       exponent bias 127
FQ_HD FQ_INLINE float float_from_float16(uint16_t half) {
#if FQ_DEVICE_CODE
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
#else
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu);
  // Read as a float32 the magnitude is 2^-112 of its value, subnormals too: one exact product mends both.
  const float scaled = float_from_bits(magnitude << 13) * 0x1.0p112f;
  // Infinity and NaN have the largest exponent, which the product has made an ordinary one.
  const uint32_t special = kInfinityBits | (magnitude << 13);
  return float_from_bits(sign | (magnitude >= 0x7c00u ? special : float_bits(scaled)));
#endif
}

FQ_HD FQ_INLINE uint16_t float16_from_float(float x) {
#if FQ_DEVICE_CODE
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
#else
  const uint32_t bits = float_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // 2^16 and above is infinity, which is what 2^16 itself becomes below.
  const uint32_t limited = magnitude < 0x47800000u ? magnitude : 0x47800000u;
  // Normal results: move the exponent from bias 127 to bias 15, round the 13 bits that go. A carry flows
  // into the exponent, up to infinity.
  const uint32_t normal = (limited - ((112u << 23) - 0xfffu) + ((limited >> 13) & 1u)) >> 13;
  // Subnormal results: 0.5 has a last place of 2^-24, which is float16's smallest number.
  const uint32_t subnormal = float_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;  // 2^-14
  half = magnitude > kInfinityBits ? 0x7e00u : half;              // NaN, without its payload
  return static_cast<uint16_t>(sign | half);
#endif
}

}  // namespace onnxfq
