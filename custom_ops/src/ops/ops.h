// The operators of domain `onnxfq`, as ONNX Runtime wants them. Each lives as long as the library.
#pragma once

#include "onnxfq/ort_abi.h"

namespace onnxfq {

const OrtCustomOp* fake_quantize_op();
const OrtCustomOp* observe_op();

}  // namespace onnxfq
