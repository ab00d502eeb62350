// FakeQuantize on a GPU for elements of one type.
#pragma once

#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cuda {

// x has at least one element. The rest as cuda::fake_quantize.
template <ElementType T>
void fake_quantize_typed(const FakeQuantizeCall& call, const Params* params, void* stream);

extern template void fake_quantize_typed<ElementType::kFloat32>(const FakeQuantizeCall&, const Params*, void*);
extern template void fake_quantize_typed<ElementType::kFloat16>(const FakeQuantizeCall&, const Params*, void*);
extern template void fake_quantize_typed<ElementType::kBfloat16>(const FakeQuantizeCall&, const Params*, void*);

}  // namespace cuda
}  // namespace onnxfq
