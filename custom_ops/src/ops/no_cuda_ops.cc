// The operators of the CUDA provider in a library without them.
#include "ops.h"

namespace onnxfq {

std::vector<const OrtCustomOp*> cuda_ops() { return {}; }

}  // namespace onnxfq
