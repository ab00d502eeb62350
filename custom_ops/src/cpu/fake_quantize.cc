// FakeQuantize on the CPU: loops over runs of elements whose scale is one value or one vector.
#include <algorithm>

#include "../quantizers.h"
#include "elements.h"
#include "fake_quantize.h"
#include "threads.h"

namespace onnxfq {
namespace cpu {
namespace {

constexpr int64_t kSmallestPiece = 1 << 14;
constexpr int64_t kCacheLine = 16;  // floats
// Below these, calling a loop for each run costs more than spelling every element's scale out first.
constexpr int64_t kShortBlock = 16;
constexpr int64_t kShortRow = 64;
// Elements whose scales are spelled out at a time: scale, zero point, x and y stay in the L1 cache.
constexpr int64_t kSpelledOut = 1024;
// Elements that a loop takes as one: the lanes of an AVX-512 register.
constexpr int64_t kGroup = 16;

alignas(kLineBytes) const float kNoZeroPoint[kSpelledOut] = {};

// One scale for x[0, kGroup): a vector operation.
template <typename Quantizer>
FQ_INLINE void uniform_group(const float* x, float* y, const Quantizer& quantizer) {
  FQ_GROUP
  for (int64_t k = 0; k < kGroup; ++k) y[k] = quantizer(x[k]);
}

// One scale for x[0, count). The block sizes of hardware formats, 16 and 32, are spelled out: the loop and
// the test for a rest would cost as much as the work.
template <typename Quantizer>
FQ_INLINE void uniform_loop(const float* x, float* y, int64_t count, const Quantizer& quantizer) {
  if (count == kGroup || count == 2 * kGroup) {
    uniform_group(x, y, quantizer);
    if (count == 2 * kGroup) uniform_group(x + kGroup, y + kGroup, quantizer);
    return;
  }
  FQ_IVDEP
  for (int64_t i = 0; i < count; ++i) y[i] = quantizer(x[i]);
}

// The zero points of blocks where there are none: a constant, and with it what follows from it.
struct NoZeroPoints {
  FQ_INLINE float operator[](int64_t) const { return 0.0f; }
};

// Consecutive blocks of one scale each, the first of them `left_in_block` long.
struct BlockRuns {
  const FakeQuantizeCall& call;
  const float* x;
  float* y;
  int64_t count;
  int64_t left_in_block;
  int64_t block;
  int64_t param;

  template <typename Quantizers, typename ZeroPoints>
  FQ_INLINE void run(const Quantizers& quantizers, const ZeroPoints& zero_points) const {
    int64_t part = std::min(left_in_block, count);
    int64_t p = param;
    for (int64_t done = 0; done < count; ++p) {
      uniform_loop(x + done, y + done, part, quantizers(call.scale[p], zero_points[p]));
      done += part;
      part = std::min(block, count - done);
    }
  }

  template <typename Quantizers>
  FQ_INLINE void operator()(const Quantizers& quantizers) const {
    call.zero_point ? run(quantizers, call.zero_point) : run(quantizers, NoZeroPoints());
  }
};

// A scale and a zero point for each element.
struct VaryingRun {
  const float* x;
  float* y;
  int64_t count;
  const float* scale;
  const float* zero_point;

  template <typename Quantizers>
  FQ_INLINE void operator()(const Quantizers& quantizers) const {
    FQ_IVDEP
    for (int64_t i = 0; i < count; ++i) y[i] = quantizers(scale[i], zero_point[i])(x[i]);
  }
};

FQ_CLONES void block_runs(const BlockRuns& runs) {
  with_quantizers(runs.call.grid, runs.call.fractional_zero_point, runs);
}

FQ_CLONES void varying_run(const FakeQuantizeCall& call, const VaryingRun& run) {
  with_quantizers(call.grid, call.fractional_zero_point, run);
}

// Row of scales as they lie in memory: x[i] uses scale[param + i].
void vector_run(const FakeQuantizeCall& call, const float* x, float* y, int64_t count, int64_t param) {
  if (call.zero_point) {
    varying_run(call, {x, y, count, call.scale + param, call.zero_point + param});
    return;
  }
  for (int64_t done = 0; done < count; done += kSpelledOut) {
    const int64_t part = std::min(kSpelledOut, count - done);
    varying_run(call, {x + done, y + done, part, call.scale + param + done, kNoZeroPoint});
  }
}

// Short rows or blocks: spells the scales of up to kSpelledOut elements out, across rows, and moves the
// cursor behind them. Returns how many elements it did.
int64_t spelled_out_run(const FakeQuantizeCall& call, const float* x, float* y, int64_t count,
                        LayoutCursor& cursor) {
  alignas(kLineBytes) float scale[kSpelledOut];
  alignas(kLineBytes) float zero_point[kSpelledOut];
  count = std::min(count, kSpelledOut);
  const LayoutDim& row = cursor.row();
  int64_t done = 0;
  while (done < count) {
    int64_t param = cursor.param_base() + cursor.column() / row.block * row.stride;
    int64_t left_in_block = row.block - cursor.column() % row.block;
    const int64_t row_end = done + std::min(count - done, row.size - cursor.column());
    const bool row_complete = row_end - done == row.size - cursor.column();
    const int64_t columns = row_end - done;
    while (done < row_end) {
      const int64_t run_end = std::min(row_end, done + left_in_block);
      const float s = call.scale[param];
      const float z = call.zero_point ? call.zero_point[param] : 0.0f;
      for (; done < run_end; ++done) {
        scale[done] = s;
        zero_point[done] = z;
      }
      param += row.stride;
      left_in_block = row.block;
    }
    if (row_complete) {
      cursor.next_row();
    } else {
      cursor.skip(columns);
    }
  }
  varying_run(call, {x, y, count, scale, zero_point});
  return count;
}

}  // namespace

static void fake_quantize_run(const FakeQuantizeCall& call, const float* x, float* y, int64_t begin, int64_t end) {
  LayoutCursor cursor(*call.layout, begin);
  const LayoutDim& row = cursor.row();
  const bool uniform_row = row.params == 1;
  const bool short_runs = row.size < kShortRow || (!uniform_row && row.block > 1 && row.block < kShortBlock);
  int64_t left = end - begin;
  if (short_runs && left > row.size) {
    while (left > 0) {
      const int64_t count = spelled_out_run(call, x, y, left, cursor);
      x += count;
      y += count;
      left -= count;
    }
    return;
  }
  while (left > 0) {
    const int64_t count = std::min(left, row.size - cursor.column());
    const int64_t block_index = cursor.column() / row.block;
    if (row.block == 1 && !uniform_row) {
      vector_run(call, x, y, count, cursor.param_base() + cursor.column());
    } else {
      block_runs({call, x, y, count, row.block - cursor.column() % row.block, row.block,
                  cursor.param_base() + block_index});
    }
    x += count;
    y += count;
    left -= count;
    cursor.next_row();
  }
}

Threads calling_thread() {
  return {[](void*, void (*task)(void*, size_t), size_t count, void* data) {
            for (size_t i = 0; i < count; ++i) task(data, i);
          },
          nullptr};
}

void fake_quantize_range(const FakeQuantizeCall& call, int64_t begin, int64_t end) {
  map_as_floats(call.type, call.x, call.y, begin, end,
                [&call](const float* x, float* y, int64_t part_begin, int64_t part_end) {
                  fake_quantize_run(call, x, y, part_begin, part_end);
                });
}

void fake_quantize(const FakeQuantizeCall& call, const Threads& threads) {
  for_pieces(threads, call.layout->element_count(), kSmallestPiece, kCacheLine,
             [&call](int64_t begin, int64_t end) { fake_quantize_range(call, begin, end); });
}

}  // namespace cpu
}  // namespace onnxfq
