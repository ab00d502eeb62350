// DynamicFakeQuantize on the CPU: ranges of the blocks, their scales, then FakeQuantize with those.
//
// If no block reaches beyond a run of x, all three happen while the run is in the cache. If blocks
// reach across x (one for the whole of it, one for each index of a later axis) each is a separate pass.
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

// Scales of blocks `first` ... `first + count - 1`, which `ranges` contains.
void write_scales(const DynamicFakeQuantizeCall& call, const BlockRanges& ranges, int64_t first, int64_t count,
                  float global_scale) {
  const int32_t* high = ranges.high() + (first - ranges.first());
  float* scale = call.scale + first;
  if (call.rule.by_magnitude) {
    symmetric_scales(high, count, call.rule, global_scale, scale);
  } else if (call.rule.symmetric) {
    two_sided_scales(ranges.low() + (first - ranges.first()), high, count, call.rule, scale);
  } else {
    const int32_t* low = ranges.low() + (first - ranges.first());
    for (int64_t i = 0; i < count; ++i) {
      const ScaleAndZeroPoint found =
          asymmetric_scale(float_from_order_key(low[i]), float_from_order_key(high[i]), call.rule);
      scale[i] = found.scale;
      call.zero_point[first + i] = found.zero_point;
    }
  }
  if (call.rule.symmetric && call.zero_point) std::fill_n(call.zero_point + first, count, 0.0f);
}

bool wants_global_scale(const DynamicFakeQuantizeCall& call) {
  return call.rule.type == ScaleType::kE4m3 && call.global_scale <= 0.0f;
}

FakeQuantizeCall static_call(const DynamicFakeQuantizeCall& call) {
  return {call.x,      call.y,    call.type, call.scale, call.rule.symmetric ? nullptr : call.zero_point,
          call.layout, call.grid, false};
}

// Ranges of all blocks, over all of x.
BlockRanges shared_ranges(const DynamicFakeQuantizeCall& call, const Threads& threads) {
  const ParamLayout& layout = *call.layout;
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

// The scale of which the scales of all blocks are multiples; ranges: of every block, by magnitude.
float global_scale(const DynamicFakeQuantizeCall& call, const BlockRanges& ranges) {
  if (!wants_global_scale(call)) return call.global_scale;
  int32_t amax = 0;
  for (int64_t i = 0; i < ranges.count(); ++i) amax = std::max(amax, ranges.high()[i]);
  return global_scale_of(float_from_bits(static_cast<uint32_t>(amax)), call.rule);
}

// Elements [begin, end) of x and their blocks, which no other elements share.
struct Runs {
  int64_t begin;
  int64_t end;
  int64_t first_block;
  int64_t block_count;
};

// Calls body for runs of whole blocks along the first dimension that together are all of x.
template <typename Body>
void for_runs(const DynamicFakeQuantizeCall& call, const Threads& threads, const Body& body) {
  const LayoutDim& outer = call.layout->dims().front();
  const int64_t count = call.layout->element_count();
  const int64_t run_size = count / outer.size * outer.block;
  const int64_t at_once = std::max<int64_t>(kCached / run_size, 1);
  for_pieces(threads, outer.params, at_once, 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += at_once) {
      const int64_t runs = std::min(at_once, end - begin);
      const int64_t first = begin * run_size;
      body(Runs{first, std::min(first + runs * run_size, count), begin * outer.stride, runs * outer.stride});
    }
  });
}

void quantize_runs(const DynamicFakeQuantizeCall& call, const Threads& threads) {
  const FakeQuantizeCall with_scales = static_call(call);
  for_runs(call, threads, [&](const Runs& runs) {
    BlockRanges ranges(call.rule.by_magnitude, runs.first_block, runs.block_count);
    ranges.add(call.type, call.x, *call.layout, runs.begin, runs.end);
    write_scales(call, ranges, runs.first_block, runs.block_count, call.global_scale);
    fake_quantize_range(with_scales, runs.begin, runs.end);
  });
}

// As quantize_runs, with ranges of all blocks before the first scale. They are found while memory is what the
// threads wait for.
void quantize_runs_by_global_scale(const DynamicFakeQuantizeCall& call, const Threads& threads) {
  BlockRanges ranges(call.rule.by_magnitude, 0, call.layout->param_count());
  for_runs(call, threads,
           [&](const Runs& runs) { ranges.add(call.type, call.x, *call.layout, runs.begin, runs.end); });
  const float global = global_scale(call, ranges);
  const FakeQuantizeCall with_scales = static_call(call);
  for_runs(call, threads, [&](const Runs& runs) {
    write_scales(call, ranges, runs.first_block, runs.block_count, global);
    fake_quantize_range(with_scales, runs.begin, runs.end);
  });
}

}  // namespace

void dynamic_fake_quantize(const DynamicFakeQuantizeCall& call, const Threads& threads) {
  const ParamLayout& layout = *call.layout;
  if (layout.element_count() > 0 && layout.dims().front().params > 1) {
    wants_global_scale(call) ? quantize_runs_by_global_scale(call, threads) : quantize_runs(call, threads);
    return;
  }
  const BlockRanges ranges = shared_ranges(call, threads);
  write_scales(call, ranges, 0, ranges.count(), global_scale(call, ranges));
  fake_quantize(static_call(call), threads);
}

}  // namespace cpu
}  // namespace onnxfq
