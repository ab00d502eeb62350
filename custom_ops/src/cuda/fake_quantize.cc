// FakeQuantize on a GPU: to the kernels of x's type.
#include "fake_quantize_typed.h"

namespace onnxfq {
namespace cuda {

void fake_quantize(const FakeQuantizeCall& call, const Params* params, void* stream) {
  if (call.layout->element_count() == 0) return;
  switch (call.type) {
    case ElementType::kFloat32: return fake_quantize_typed<ElementType::kFloat32>(call, params, stream);
    case ElementType::kFloat16: return fake_quantize_typed<ElementType::kFloat16>(call, params, stream);
    case ElementType::kBfloat16: return fake_quantize_typed<ElementType::kBfloat16>(call, params, stream);
  }
}

}  // namespace cuda
}  // namespace onnxfq
