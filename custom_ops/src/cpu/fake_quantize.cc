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

// Value written for an element, see Quantity; `at` is its index in x as a whole.
struct Value {
  template <typename Quantizer>
  FQ_INLINE void operator()(const Quantizer& quantizer, float x, float* y, int64_t) const {
    *y = quantizer(x);
  }
};

struct ValueAndMask {
  uint8_t* inside;

  template <typename Quantizer>
  FQ_INLINE void operator()(const Quantizer& quantizer, float x, float* y, int64_t at) const {
    inside[at] = quantizer.inside(x) ? 1 : 0;
    *y = quantizer(x);
  }
};

struct DerivativeByScale {
  template <typename Quantizer>
  FQ_INLINE void operator()(const Quantizer& quantizer, float x, float* y, int64_t) const {
    const float steps = quantizer.steps(x);
    const float error = quantizer.in_steps(quantizer.scale * steps - x);
    *y = quantizer.inside(x) ? error : steps;
  }
};

// One scale for x[0, kGroup): a vector operation.
template <typename Quantizer, typename Write>
FQ_INLINE void uniform_group(const float* x, float* y, int64_t at, const Quantizer& quantizer,
                             const Write& write) {
  FQ_GROUP
  for (int64_t k = 0; k < kGroup; ++k) write(quantizer, x[k], y + k, at + k);
}

// One scale for x[0, count). The block sizes of hardware formats, 16 and 32, are spelled out: the loop and
// the test for a rest would cost as much as the work.
template <typename Quantizer, typename Write>
FQ_INLINE void uniform_loop(const float* x, float* y, int64_t at, int64_t count, const Quantizer& quantizer,
                            const Write& write) {
  if (count == kGroup || count == 2 * kGroup) {
    uniform_group(x, y, at, quantizer, write);
    if (count == 2 * kGroup) uniform_group(x + kGroup, y + kGroup, at + kGroup, quantizer, write);
    return;
  }
  FQ_IVDEP
  for (int64_t i = 0; i < count; ++i) write(quantizer, x[i], y + i, at + i);
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
  int64_t at;
  int64_t count;
  int64_t left_in_block;
  int64_t block;
  int64_t param;

  template <typename Quantizers, typename ZeroPoints, typename Write>
  FQ_INLINE void run(const Quantizers& quantizers, const ZeroPoints& zero_points, const Write& write) const {
    int64_t part = std::min(left_in_block, count);
    int64_t p = param;
    for (int64_t done = 0; done < count; ++p) {
      uniform_loop(x + done, y + done, at + done, part, quantizers(call.scale[p], zero_points[p]), write);
      done += part;
      part = std::min(block, count - done);
    }
  }

  template <typename Quantizers, typename Write>
  FQ_INLINE void write(const Quantizers& quantizers, const Write& write) const {
    call.zero_point ? run(quantizers, call.zero_point, write) : run(quantizers, NoZeroPoints(), write);
  }
};

// A scale and a zero point for each element.
struct VaryingRun {
  const float* x;
  float* y;
  int64_t at;
  int64_t count;
  const float* scale;
  const float* zero_point;

  template <typename Quantizers, typename Write>
  FQ_INLINE void write(const Quantizers& quantizers, const Write& write) const {
    FQ_IVDEP
    for (int64_t i = 0; i < count; ++i) write(quantizers(scale[i], zero_point[i]), x[i], y + i, at + i);
  }
};

// A run and what it writes, as with_quantizers calls it.
template <typename Run, typename Write>
struct Writing {
  const Run& run;
  Write write;

  template <typename Quantizers>
  FQ_INLINE void operator()(const Quantizers& quantizers) const {
    run.write(quantizers, write);
  }
};

FQ_CLONES void values(const FakeQuantizeCall& call, const BlockRuns& run) {
  with_quantizers(call.grid, call.fractional_zero_point, Writing<BlockRuns, Value>{run, {}});
}

FQ_CLONES void values(const FakeQuantizeCall& call, const VaryingRun& run) {
  with_quantizers(call.grid, call.fractional_zero_point, Writing<VaryingRun, Value>{run, {}});
}

FQ_CLONES void values_and_masks(const FakeQuantizeCall& call, const BlockRuns& run) {
  with_half_even_quantizers(call.grid, call.fractional_zero_point, Writing<BlockRuns, ValueAndMask>{run, {call.inside}});
}

FQ_CLONES void values_and_masks(const FakeQuantizeCall& call, const VaryingRun& run) {
  with_half_even_quantizers(call.grid, call.fractional_zero_point, Writing<VaryingRun, ValueAndMask>{run, {call.inside}});
}

FQ_CLONES void derivatives(const FakeQuantizeCall& call, const BlockRuns& run) {
  with_half_even_quantizers(call.grid, call.fractional_zero_point, Writing<BlockRuns, DerivativeByScale>{run, {}});
}

FQ_CLONES void derivatives(const FakeQuantizeCall& call, const VaryingRun& run) {
  with_half_even_quantizers(call.grid, call.fractional_zero_point, Writing<VaryingRun, DerivativeByScale>{run, {}});
}

template <typename Run>
void write_run(const FakeQuantizeCall& call, const Run& run) {
  if (call.quantity == Quantity::kDerivativeByScale) return derivatives(call, run);
  call.inside ? values_and_masks(call, run) : values(call, run);
}

// Row of scales as they lie in memory: x[i] uses scale[param + i].
void vector_run(const FakeQuantizeCall& call, const float* x, float* y, int64_t at, int64_t count,
                int64_t param) {
  if (call.zero_point) {
    write_run(call, VaryingRun{x, y, at, count, call.scale + param, call.zero_point + param});
    return;
  }
  for (int64_t done = 0; done < count; done += kSpelledOut) {
    const int64_t part = std::min(kSpelledOut, count - done);
    write_run(call, VaryingRun{x + done, y + done, at + done, part, call.scale + param + done, kNoZeroPoint});
  }
}

// Short rows or blocks: spells the scales of up to kSpelledOut elements out, across rows, and moves the
// cursor behind them. Returns how many elements it did.
int64_t spelled_out_run(const FakeQuantizeCall& call, const float* x, float* y, int64_t at, int64_t count,
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
  write_run(call, VaryingRun{x, y, at, count, scale, zero_point});
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
      const int64_t count = spelled_out_run(call, x, y, end - left, left, cursor);
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
      vector_run(call, x, y, end - left, count, cursor.param_base() + cursor.column());
    } else {
      write_run(call, BlockRuns{call, x, y, end - left, count, row.block - cursor.column() % row.block, row.block,
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
