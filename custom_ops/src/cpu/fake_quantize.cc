// FakeQuantize on the CPU: loops over runs of elements whose scale is one value or one vector.
#include <algorithm>

#include "onnxfq/kernels.h"
#include "threads.h"

namespace onnxfq {
namespace cpu {
namespace {

constexpr int64_t kSmallestPiece = 1 << 14;
// Below these, calling a loop for each run costs more than spelling every element's scale out first.
constexpr int64_t kShortBlock = 16;
constexpr int64_t kShortRow = 64;
// Elements whose scales are spelled out at a time: scale, zero point, x and y stay in the L1 cache.
constexpr int64_t kSpelledOut = 1024;

const float kNoZeroPoint[kSpelledOut] = {};

template <Rounding R, Arithmetic A>
FQ_INLINE void uniform_loop(const float* x, float* y, int64_t count, float scale, float zero_point, Grid grid) {
  const float divisor = divisor_of<A>(scale);
  const float low = grid.qmin - zero_point;
  const float high = grid.qmax - zero_point;
  FQ_IVDEP
  for (int64_t i = 0; i < count; ++i) y[i] = onnxfq::fake_quantize<R, A>(x[i], scale, divisor, low, high);
}

template <Rounding R, Arithmetic A>
FQ_INLINE void varying_loop(const float* x, float* y, int64_t count, const float* scale, const float* zero_point,
                            Grid grid) {
  FQ_IVDEP
  for (int64_t i = 0; i < count; ++i) {
    y[i] = onnxfq::fake_quantize<R, A>(x[i], scale[i], divisor_of<A>(scale[i]), grid.qmin - zero_point[i],
                               grid.qmax - zero_point[i]);
  }
}

template <Rounding R, Arithmetic A>
FQ_INLINE void block_loop(const FakeQuantizeCall& call, int64_t begin, int64_t count, int64_t left_in_block,
                          int64_t block, int64_t param) {
  while (count > 0) {
    const int64_t part = std::min(left_in_block, count);
    const float zero_point = call.zero_point ? call.zero_point[param] : 0.0f;
    uniform_loop<R, A>(call.x + begin, call.y + begin, part, call.scale[param], zero_point, call.grid);
    begin += part;
    count -= part;
    left_in_block = block;
    ++param;
  }
}

// Consecutive blocks of one scale each, the first of them `left_in_block` long.
FQ_CLONES void block_runs(const FakeQuantizeCall& call, int64_t begin, int64_t count, int64_t left_in_block,
                          int64_t block, int64_t param) {
  const bool divide = call.arithmetic == Arithmetic::kDivide;
  if (call.rounding == Rounding::kHalfEven) {
    if (divide) {
      block_loop<Rounding::kHalfEven, Arithmetic::kDivide>(call, begin, count, left_in_block, block, param);
    } else {
      block_loop<Rounding::kHalfEven, Arithmetic::kReciprocal>(call, begin, count, left_in_block, block, param);
    }
  } else if (divide) {
    block_loop<Rounding::kHalfUp, Arithmetic::kDivide>(call, begin, count, left_in_block, block, param);
  } else {
    block_loop<Rounding::kHalfUp, Arithmetic::kReciprocal>(call, begin, count, left_in_block, block, param);
  }
}

// A scale and a zero point for each element.
FQ_CLONES void varying_run(const FakeQuantizeCall& call, int64_t begin, int64_t count, const float* scale,
                           const float* zero_point) {
  const float* x = call.x + begin;
  float* y = call.y + begin;
  const bool divide = call.arithmetic == Arithmetic::kDivide;
  if (call.rounding == Rounding::kHalfEven) {
    if (divide) {
      varying_loop<Rounding::kHalfEven, Arithmetic::kDivide>(x, y, count, scale, zero_point, call.grid);
    } else {
      varying_loop<Rounding::kHalfEven, Arithmetic::kReciprocal>(x, y, count, scale, zero_point, call.grid);
    }
  } else if (divide) {
    varying_loop<Rounding::kHalfUp, Arithmetic::kDivide>(x, y, count, scale, zero_point, call.grid);
  } else {
    varying_loop<Rounding::kHalfUp, Arithmetic::kReciprocal>(x, y, count, scale, zero_point, call.grid);
  }
}

// Row of scales as they lie in memory: x[i] uses scale[param + i].
void vector_run(const FakeQuantizeCall& call, int64_t begin, int64_t count, int64_t param) {
  if (call.zero_point) {
    varying_run(call, begin, count, call.scale + param, call.zero_point + param);
    return;
  }
  for (int64_t done = 0; done < count; done += kSpelledOut) {
    const int64_t part = std::min(kSpelledOut, count - done);
    varying_run(call, begin + done, part, call.scale + param + done, kNoZeroPoint);
  }
}

// Short rows or blocks: spells the scales of up to kSpelledOut elements out, across rows, and moves the
// cursor behind them. Returns how many elements it did.
int64_t spelled_out_run(const FakeQuantizeCall& call, int64_t begin, int64_t count, LayoutCursor& cursor) {
  float scale[kSpelledOut];
  float zero_point[kSpelledOut];
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
  varying_run(call, begin, count, scale, zero_point);
  return count;
}

void fake_quantize_range(const FakeQuantizeCall& call, int64_t begin, int64_t end) {
  LayoutCursor cursor(*call.layout, begin);
  const LayoutDim& row = cursor.row();
  const bool uniform_row = row.params == 1;
  const bool short_runs = row.size < kShortRow || (!uniform_row && row.block > 1 && row.block < kShortBlock);
  if (short_runs && end - begin > row.size) {
    while (begin < end) begin += spelled_out_run(call, begin, end - begin, cursor);
    return;
  }
  while (begin < end) {
    const int64_t count = std::min(end - begin, row.size - cursor.column());
    if (row.block == 1 && !uniform_row) {
      vector_run(call, begin, count, cursor.param_base() + cursor.column());
    } else {
      block_runs(call, begin, count, row.block - cursor.column() % row.block, row.block,
                 cursor.param_base() + cursor.column() / row.block);
    }
    begin += count;
    cursor.next_row();
  }
}

}  // namespace

Threads calling_thread() {
  return {[](void*, void (*task)(void*, size_t), size_t count, void* data) {
            for (size_t i = 0; i < count; ++i) task(data, i);
          },
          nullptr};
}

void fake_quantize(const FakeQuantizeCall& call, const Threads& threads) {
  for_pieces(threads, call.layout->element_count(), kSmallestPiece,
             [&call](int64_t begin, int64_t end) { fake_quantize_range(call, begin, end); });
}

}  // namespace cpu
}  // namespace onnxfq
