// The gradient of fake quantization straight through the grid, and of nothing outside it.
#include "threads.h"

namespace onnxfq {
namespace cpu {
namespace {

constexpr int64_t kSmallestPiece = 1 << 14;
constexpr int64_t kCacheLine = 16;  // floats

FQ_CLONES void mask_run(const float* gradient, const uint8_t* inside, float* y, int64_t count) {
  // A product, not a choice: outside it keeps the sign of a zero, and NaN, as torch's product with its mask does.
  FQ_IVDEP
  for (int64_t i = 0; i < count; ++i) y[i] = gradient[i] * static_cast<float>(inside[i]);
}

}  // namespace

void mask_gradient(const float* gradient, const uint8_t* inside, float* y, int64_t count, const Threads& threads) {
  for_pieces(threads, count, kSmallestPiece, kCacheLine, [=](int64_t begin, int64_t end) {
    mask_run(gradient + begin, inside + begin, y + begin, end - begin);
  });
}

}  // namespace cpu
}  // namespace onnxfq
