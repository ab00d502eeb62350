// The kernels of FakeQuantize for one type of elements; each type has its own file, so that they are compiled
// side by side.
#pragma once

#include <type_traits>

#include "../quantizers.h"
#include "fake_quantize_loops.h"
#include "fake_quantize_typed.h"
#include "launch.h"

namespace onnxfq {
namespace cuda {

template <ElementType T, typename Quantizers>
__global__ void __launch_bounds__(kThreads)
    fake_quantize_per_tensor(Mapped mapped, Quantizers quantizers, float scale, float zero_point) {
  const auto quantizer = quantizers(scale, zero_point);
  map_elements<T>(mapped, place(), PerTensor<std::decay_t<decltype(quantizer)>>{quantizer});
}

// Blocks of threads that a multiprocessor shall hold of the kernel below: with fewer it waits for its loads, and for more
// the compiler has too few registers (of 5, 6 and 8 on an H200, 6 is the fastest for 16 and for 32 bits).
constexpr int kResident = 6;

template <ElementType T, typename Quantizers, typename Index>
__global__ void __launch_bounds__(kThreads, kResident)
    fake_quantize_by_layout(Mapped mapped, Quantizers quantizers, Params params,
                            const __grid_constant__ DeviceLayout<Index> layout) {
  map_elements<T>(mapped, place(), ByLayout<Quantizers, Index>{quantizers, params, layout});
}

template <ElementType T>
void fake_quantize_typed(const FakeQuantizeCall& call, const Params* params, void* stream) {
  const Mapped mapped{call.x, call.y, Packets(call.x, call.y, call.layout->element_count(), T)};
  const unsigned blocks = blocks_for(mapped.range);
  const auto by_layout = [&](const auto& quantizers, auto index) {
    using Quantizers = std::decay_t<decltype(quantizers)>;
    using Index = decltype(index);
    fake_quantize_by_layout<T, Quantizers, Index>
        <<<blocks, kThreads, 0, as_stream(stream)>>>(mapped, quantizers, *params, DeviceLayout<Index>(*call.layout));
  };
  if (params && mapped.range.count > kMostOfShortIndex) {
    // Tensors this large are rare: one kernel for each kind of grid, whatever the rounding, which gives the same bits.
    with_arithmetic<Divide>(call.grid, call.fractional_zero_point, RoundToAny{call.grid.rounding},
                            [&](const auto& quantizers) { by_layout(quantizers, int64_t{}); });
  } else {
    with_device_quantizers(call.grid, call.fractional_zero_point, [&](const auto& quantizers) {
      if (params) return by_layout(quantizers, int32_t{});
      fake_quantize_per_tensor<T><<<blocks, kThreads, 0, as_stream(stream)>>>(
          mapped, quantizers, call.scale[0], call.zero_point ? call.zero_point[0] : 0.0f);
    });
  }
  check(cudaGetLastError(), "launch FakeQuantize");
}

}  // namespace cuda
}  // namespace onnxfq
