// FakeQuantize on a GPU for float32.
#include "fake_quantize_kernels.h"

namespace onnxfq {
namespace cuda {

template void fake_quantize_typed<ElementType::kFloat32>(const FakeQuantizeCall&, const Params*, void*);

}  // namespace cuda
}  // namespace onnxfq
