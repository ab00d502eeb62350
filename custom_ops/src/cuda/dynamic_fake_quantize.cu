// DynamicFakeQuantize on a GPU: ranges of the blocks, their scales, then FakeQuantize with those.
#include <algorithm>

#include "block_ranges_loops.h"
#include "launch.h"

namespace onnxfq {
namespace cuda {
namespace {

template <ElementType T, bool ByMagnitude, typename Index>
__global__ void __launch_bounds__(kThreads)
    find_ranges_kernel(const void* x, Packets range, const __grid_constant__ DeviceLayout<Index> layout,
                       RangeArrays arrays) {
  find_ranges<T, ByMagnitude>(x, range, layout, arrays, place());
}

// Ranges of the blocks of `layout`, which has at least one element.
template <bool ByMagnitude, typename Index>
void launch_ranges_indexed(const DynamicFakeQuantizeCall& call, const ParamLayout& layout, const RangeArrays& arrays,
                           void* stream) {
  const Packets range(call.x, call.x, layout.element_count(), call.type);
  const DeviceLayout<Index> on_device(layout);
  const auto launch = [&](auto kernel) {
    // Threads that stay meet less often than threads that come and go.
    const unsigned blocks = std::min(blocks_for(range), resident_blocks(kernel, kThreads));
    kernel<<<blocks, kThreads, 0, as_stream(stream)>>>(call.x, range, on_device, arrays);
  };
  switch (call.type) {
    case ElementType::kFloat32: launch(find_ranges_kernel<ElementType::kFloat32, ByMagnitude, Index>); break;
    case ElementType::kFloat16: launch(find_ranges_kernel<ElementType::kFloat16, ByMagnitude, Index>); break;
    case ElementType::kBfloat16: launch(find_ranges_kernel<ElementType::kBfloat16, ByMagnitude, Index>); break;
  }
  check(cudaGetLastError(), "launch DynamicFakeQuantize");
}

template <bool ByMagnitude>
void launch_ranges(const DynamicFakeQuantizeCall& call, const ParamLayout& layout, const RangeArrays& arrays,
                   void* stream) {
  layout.element_count() > kMostOfShortIndex
      ? launch_ranges_indexed<ByMagnitude, int64_t>(call, layout, arrays, stream)
      : launch_ranges_indexed<ByMagnitude, int32_t>(call, layout, arrays, stream);
}

// global_magnitude: of all of x, read when no global scale is given and the rule needs one.
template <ScaleType Type>
__device__ void write_symmetric(const int32_t* high, int64_t i, const ScaleRule& rule, float global,
                                const int32_t* global_magnitude, float* scale) {
  if (Type == ScaleType::kE4m3 && !(global > 0.0f)) {
    global = global_scale_of(float_from_bits(static_cast<uint32_t>(*global_magnitude)), rule);
  }
  scale[i] = symmetric_scale<Type>(float_from_bits(static_cast<uint32_t>(high[i])), rule, global);
}

__global__ void __launch_bounds__(kThreads)
    write_scales_kernel(RangeArrays ranges, int64_t count, ScaleRule rule, float global_scale,
                        const int32_t* global_magnitude, float* scale, float* zero_point) {
  for (int64_t i = place().in_launch(); i < count; i += place().all_threads()) {
    if (!rule.symmetric) {
      const ScaleAndZeroPoint found =
          asymmetric_scale(float_from_order_key(ranges.low[i]), float_from_order_key(ranges.high[i]), rule);
      scale[i] = found.scale;
      zero_point[i] = found.zero_point;
      continue;
    }
    if (zero_point) zero_point[i] = 0.0f;
    if (!rule.by_magnitude) {
      scale[i] = two_sided_scale(float_from_order_key(ranges.low[i]), float_from_order_key(ranges.high[i]), rule);
      continue;
    }
    switch (rule.type) {
      case ScaleType::kFloat32:
        write_symmetric<ScaleType::kFloat32>(ranges.high, i, rule, global_scale, global_magnitude, scale);
        break;
      case ScaleType::kE8m0:
        write_symmetric<ScaleType::kE8m0>(ranges.high, i, rule, global_scale, global_magnitude, scale);
        break;
      case ScaleType::kE4m3:
        write_symmetric<ScaleType::kE4m3>(ranges.high, i, rule, global_scale, global_magnitude, scale);
        break;
    }
  }
}

}  // namespace

void dynamic_fake_quantize(const DynamicFakeQuantizeCall& call, void* stream) {
  const int64_t params = call.layout->param_count();
  if (params == 0) return;
  // Two ranges, the magnitude of all of x, and two floats for each block.
  const size_t room = static_cast<size_t>(4 * params + 1) * 4;
  const StreamBuffer memory(room, stream);
  check(cudaMemsetAsync(memory.data(), 0, room, as_stream(stream)), "clear ranges");
  int32_t* const integers = static_cast<int32_t*>(memory.data());
  float* const floats = static_cast<float*>(memory.data()) + 2 * params + 1;
  const RangeArrays ranges{integers, integers + params};
  int32_t* const global_magnitude = integers + 2 * params;
  float* const scale = call.scale ? call.scale : floats;
  float* const zero_point = call.zero_point ? call.zero_point : floats + params;

  if (call.layout->element_count() > 0) {
    if (call.rule.type == ScaleType::kE4m3 && !(call.global_scale > 0.0f)) {
      ParamLayout whole;
      whole.fit({call.layout->element_count()}, {}, {});
      launch_ranges<true>(call, whole, {nullptr, global_magnitude}, stream);
    }
    call.rule.by_magnitude ? launch_ranges<true>(call, *call.layout, ranges, stream)
                           : launch_ranges<false>(call, *call.layout, ranges, stream);
  }
  write_scales_kernel<<<blocks_for(params), kThreads, 0, as_stream(stream)>>>(
      ranges, params, call.rule, call.global_scale, global_magnitude, scale, zero_point);
  check(cudaGetLastError(), "launch DynamicFakeQuantize");
  const Params found{scale, call.rule.symmetric ? nullptr : zero_point};
  fake_quantize({call.x, call.y, call.type, nullptr, nullptr, call.layout, call.grid, false}, &found, stream);
}

}  // namespace cuda
}  // namespace onnxfq
