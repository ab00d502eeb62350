// DynamicFakeQuantize on the CPU: ranges of the blocks, their scales, then FakeQuantize with those.
//
// Where a run of x has its blocks for itself all three happen while the run is in the cache. Where blocks
// reach across x (one for the whole of it, one for each index of a later axis) each is a pass of its own.
#include <algorithm>
#include <mutex>

#include "block_ranges.h"
#include "fake_quantize.h"
#include "threads.h"

namespace onnxfq {
namespace cpu {
namespace {

// Elements of x that a thread takes at a time: x and y stay in the L2 cache.
constexpr int64_t kCached = 1 << 14;
// Each piece of a shared range has a copy of all ranges.
constexpr int64_t kCopies = 16;

template <ScaleType T>
FQ_INLINE void symmetric_loop(const int32_t* magnitude, int64_t count, const ScaleRule& rule, float global_scale,
                              float* scale) {
  FQ_IVDEP
  for (int64_t i = 0; i < count; ++i) {
    scale[i] = symmetric_scale<T>(float_from_bits(static_cast<uint32_t>(magnitude[i])), rule, global_scale);
  }
}

// The rule is a copy: its fields are then known not to be what `scale` writes.
FQ_CLONES void symmetric_scales(const int32_t* magnitude, int64_t count, const ScaleRule& given, float global_scale,
                                float* scale) {
  const ScaleRule rule = given;
  switch (rule.type) {
    case ScaleType::kFloat32:
      return symmetric_loop<ScaleType::kFloat32>(magnitude, count, rule, global_scale, scale);
    case ScaleType::kE8m0: return symmetric_loop<ScaleType::kE8m0>(magnitude, count, rule, global_scale, scale);
    case ScaleType::kE4m3: return symmetric_loop<ScaleType::kE4m3>(magnitude, count, rule, global_scale, scale);
  }
}

FQ_CLONES void two_sided_scales(const int32_t* low, const int32_t* high, int64_t count, const ScaleRule& given,
                                float* scale) {
  const ScaleRule rule = given;
  FQ_IVDEP
  for (int64_t i = 0; i < count; ++i) {
    scale[i] = two_sided_scale(float_from_order_key(low[i]), float_from_order_key(high[i]), rule);
  }
}

void write_scales(const DynamicFakeQuantizeCall& call, const BlockRanges& ranges, float global_scale) {
  float* scale = call.scale + ranges.first();
  if (call.rule.symmetric) {
    if (call.rule.by_magnitude) {
      symmetric_scales(ranges.high(), ranges.count(), call.rule, global_scale, scale);
    } else {
      two_sided_scales(ranges.low(), ranges.high(), ranges.count(), call.rule, scale);
    }
    if (call.zero_point) std::fill_n(call.zero_point + ranges.first(), ranges.count(), 0.0f);
    return;
  }
  float* zero_point = call.zero_point + ranges.first();
  for (int64_t i = 0; i < ranges.count(); ++i) {
    const ScaleAndZeroPoint found = asymmetric_scale(float_from_order_key(ranges.low()[i]),
                                                     float_from_order_key(ranges.high()[i]), call.rule);
    scale[i] = found.scale;
    zero_point[i] = found.zero_point;
  }
}

FakeQuantizeCall static_call(const DynamicFakeQuantizeCall& call) {
  return {call.x,      call.y,    call.type, call.scale, call.rule.symmetric ? nullptr : call.zero_point,
          call.layout, call.grid, false};
}

// Ranges of all blocks of `layout`, over all of x.
BlockRanges shared_ranges(const DynamicFakeQuantizeCall& call, const ParamLayout& layout, const Threads& threads) {
  BlockRanges total(call.rule.by_magnitude, 0, layout.param_count());
  if (layout.element_count() == 0) return total;
  const int64_t rows = layout.dims().front().size;
  const int64_t row_size = layout.element_count() / rows;
  const int64_t piece = std::max(rows / kCopies + 1, kCached / row_size + 1);
  std::mutex mutex;
  for_pieces(threads, rows, piece, 1, [&](int64_t begin, int64_t end) {
    BlockRanges ranges(call.rule.by_magnitude, 0, layout.param_count());
    ranges.add(call.type, call.x, layout, begin * row_size, end * row_size);
    std::lock_guard<std::mutex> lock(mutex);
    total.merge(ranges);
  });
  return total;
}

float global_scale(const DynamicFakeQuantizeCall& call, const Threads& threads) {
  if (call.rule.type != ScaleType::kE4m3 || call.global_scale > 0.0f) return call.global_scale;
  ParamLayout whole;
  whole.fit({call.layout->element_count()}, {}, {});
  const int32_t amax = shared_ranges(call, whole, threads).high()[0];
  return global_scale_of(float_from_bits(static_cast<uint32_t>(amax)), call.rule);
}

// Runs of whole blocks along the first dimension, each with blocks of its own.
void quantize_runs(const DynamicFakeQuantizeCall& call, float global, const Threads& threads) {
  const LayoutDim& outer = call.layout->dims().front();
  const int64_t run_size = call.layout->element_count() / outer.size * outer.block;
  const int64_t run_params = outer.stride;
  const int64_t at_once = std::max<int64_t>(kCached / run_size, 1);
  const FakeQuantizeCall with_scales = static_call(call);
  for_pieces(threads, outer.params, at_once, 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += at_once) {
      const int64_t runs = std::min(at_once, end - begin);
      const int64_t first = begin * run_size;
      const int64_t last = std::min(first + runs * run_size, call.layout->element_count());
      BlockRanges ranges(call.rule.by_magnitude, begin * run_params, runs * run_params);
      ranges.add(call.type, call.x, *call.layout, first, last);
      write_scales(call, ranges, global);
      fake_quantize_range(with_scales, first, last);
    }
  });
}

}  // namespace

void dynamic_fake_quantize(const DynamicFakeQuantizeCall& call, const Threads& threads) {
  const float global = global_scale(call, threads);
  if (call.layout->element_count() > 0 && call.layout->dims().front().params > 1) {
    quantize_runs(call, global, threads);
  } else {
    write_scales(call, shared_ranges(call, *call.layout, threads), global);
    fake_quantize(static_call(call), threads);
  }
}

}  // namespace cpu
}  // namespace onnxfq
