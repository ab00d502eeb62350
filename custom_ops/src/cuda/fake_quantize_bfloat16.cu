// FakeQuantize on a GPU for bfloat16.
#include "fake_quantize_kernels.h"

namespace onnxfq {
namespace cuda {

template void fake_quantize_typed<ElementType::kBfloat16>(const FakeQuantizeCall&, const Params*, void*);

}  // namespace cuda
}  // namespace onnxfq
