// The part of FakeQuantize that other kernels build on.
#pragma once

#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cpu {

// Elements [begin, end) of a call, on the calling thread.
void fake_quantize_range(const FakeQuantizeCall& call, int64_t begin, int64_t end);

}  // namespace cpu
}  // namespace onnxfq
