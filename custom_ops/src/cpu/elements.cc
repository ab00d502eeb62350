// Loops of the conversions between 16-bit elements and float32.
#include "elements.h"

// FQ_VERSION: one of several functions of the same signature, for the instruction set named, where FQ_CLONES makes
// copies for several.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && !defined(FQ_ONE_CLONE)
#include <immintrin.h>
#define FQ_HAS_VERSIONS
#define FQ_VERSION(name) __attribute__((target(name)))
#else
#define FQ_VERSION(name)
#endif

namespace onnxfq {
namespace cpu {
namespace {

FQ_VERSION("default") void read_float16(const uint16_t* x, int64_t count, float* floats) {
  for (int64_t i = 0; i < count; ++i) floats[i] = float_from_float16(x[i]);
}

FQ_VERSION("default") void write_float16(const float* floats, int64_t count, uint16_t* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = float16_from_float(floats[i]);
}

#ifdef FQ_HAS_VERSIONS
// The same by instructions, which compilers do not find in the arithmetic on bits.
constexpr int64_t kEight = 8;

FQ_VERSION("arch=x86-64-v3") void read_float16(const uint16_t* x, int64_t count, float* floats) {
  int64_t i = 0;
  for (; i + kEight <= count; i += kEight) {
    _mm256_storeu_ps(floats + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  }
  for (; i < count; ++i) floats[i] = float_from_float16(x[i]);
}

FQ_VERSION("arch=x86-64-v3") void write_float16(const float* floats, int64_t count, uint16_t* y) {
  const __m128i infinity = _mm_set1_epi16(0x7c00), magnitude = _mm_set1_epi16(0x7fff);
  int64_t i = 0;
  for (; i + kEight <= count; i += kEight) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(floats + i), _MM_FROUND_TO_NEAREST_INT);
    // NaN loses its payload: it keeps its sign and the bits that infinity and it have alike.
    const __m128i nan = _mm_cmpgt_epi16(_mm_and_si128(half, magnitude), infinity);
    const __m128i payload = _mm_and_si128(nan, _mm_set1_epi16(0x01ff));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), _mm_andnot_si128(payload, half));
  }
  for (; i < count; ++i) y[i] = float16_from_float(floats[i]);
}
#endif

FQ_CLONES void read_bfloat16(const uint16_t* x, int64_t count, float* floats) {
  for (int64_t i = 0; i < count; ++i) floats[i] = float_from_bfloat16(x[i]);
}

FQ_CLONES void write_bfloat16(const float* floats, int64_t count, uint16_t* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = bfloat16_from_float(floats[i]);
}

}  // namespace

void to_floats(ElementType type, const void* x, int64_t begin, int64_t count, float* floats) {
  const uint16_t* halves = static_cast<const uint16_t*>(x) + begin;
  type == ElementType::kFloat16 ? read_float16(halves, count, floats) : read_bfloat16(halves, count, floats);
}

void from_floats(ElementType type, const float* floats, int64_t count, void* y, int64_t begin) {
  uint16_t* halves = static_cast<uint16_t*>(y) + begin;
  type == ElementType::kFloat16 ? write_float16(floats, count, halves) : write_bfloat16(floats, count, halves);
}

}  // namespace cpu
}  // namespace onnxfq
