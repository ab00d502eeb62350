// The operators of domain `onnxfq`, as ONNX Runtime wants them. Each lives as long as the library.
#pragma once

#include <vector>

#include "onnxfq/ort_abi.h"

namespace onnxfq {

// One for each combination of types.
std::vector<const OrtCustomOp*> dynamic_fake_quantize_ops();
std::vector<const OrtCustomOp*> fake_quantize_ops();
std::vector<const OrtCustomOp*> merge_statistics_ops();
std::vector<const OrtCustomOp*> observe_ops();

// The same for the CUDA provider; empty in a library that was built without it.
std::vector<const OrtCustomOp*> cuda_ops();

}  // namespace onnxfq
