// Loops of the conversions between 16-bit elements and float32.
#include "elements.h"

namespace onnxfq {
namespace cpu {
namespace {

FQ_CLONES void read_float16(const uint16_t* x, int64_t count, float* floats) {
  for (int64_t i = 0; i < count; ++i) floats[i] = float_from_float16(x[i]);
}

FQ_CLONES void read_bfloat16(const uint16_t* x, int64_t count, float* floats) {
  for (int64_t i = 0; i < count; ++i) floats[i] = float_from_bfloat16(x[i]);
}

FQ_CLONES void write_float16(const float* floats, int64_t count, uint16_t* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = float16_from_float(floats[i]);
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
