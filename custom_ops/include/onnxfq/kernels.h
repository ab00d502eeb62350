// What a backend implements: plain pointers and int64 sizes, no ONNX Runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onnxfq/numeric_core.h"
#include "onnxfq/param_layout.h"
#include "onnxfq/statistics.h"

namespace onnxfq {

// A call of FakeQuantize. y has as many elements as x and may be x itself, no other overlap.
struct FakeQuantizeCall {
  const float* x;
  float* y;
  const float* scale;
  const float* zero_point;  // integer-valued, one for each scale; nullptr: all 0
  const ParamLayout* layout;
  Grid grid;
  Rounding rounding;
  Arithmetic arithmetic;
};

namespace cpu {

// Runs task(data, 0) ... task(data, count - 1), in any order, on as many threads as it has.
struct Threads {
  void (*run)(void* pool, void (*task)(void* data, size_t index), size_t count, void* data);
  void* pool;
};

// The calling thread alone.
Threads calling_thread();

void fake_quantize(const FakeQuantizeCall& call, const Threads& threads);

// Statistics of x[0, count). The same for any number of threads. histogram false: no bins.
Statistics observe(const float* x, int64_t count, bool histogram, const Threads& threads);

}  // namespace cpu
}  // namespace onnxfq
