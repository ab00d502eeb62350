// Loops over runs of elements that share a range, or have one each.
#include "block_ranges.h"

#include <algorithm>

#include "elements.h"

namespace onnxfq {
namespace cpu {
namespace {

constexpr int64_t kGroup = 16;
// From here on the compiler's own reduction is faster than groups that are each reduced to one value.
constexpr int64_t kLongRun = 128;

FQ_INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
FQ_INLINE int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

FQ_INLINE int32_t largest_magnitude(const float* x, int64_t count) {
  int32_t high = 0;
  int64_t i = 0;
  if (count < kLongRun) {
    for (; i + kGroup <= count; i += kGroup) {
      int32_t group = 0;
      FQ_GROUP
      for (int64_t k = 0; k < kGroup; ++k) group = larger(group, finite_magnitude(x[i + k]));
      high = larger(high, group);
    }
  }
  for (; i < count; ++i) high = larger(high, finite_magnitude(x[i]));
  return high;
}

// to[i] = the larger of from[2 i] and from[2 i + 1].
template <int64_t Count>
FQ_INLINE void join_neighbours(const int32_t* from, int32_t* to) {
  FQ_IVDEP
  for (int64_t i = 0; i < Count; ++i) to[i] = larger(from[2 * i], from[2 * i + 1]);
}

// kGroup blocks of Groups * kGroup elements each, all at once: the reduction of each alone costs more than its
// elements.
template <int64_t Groups>
FQ_INLINE void short_block_magnitudes(const float* x, int32_t* high) {
  alignas(64) int32_t whole[kGroup * kGroup];
  alignas(64) int32_t half[kGroup * kGroup / 2];
  for (int64_t block = 0; block < kGroup; ++block, x += Groups * kGroup) {
    FQ_GROUP
    for (int64_t k = 0; k < kGroup; ++k) {
      int32_t largest = finite_magnitude(x[k]);
      if (Groups == 2) largest = larger(largest, finite_magnitude(x[k + kGroup]));
      whole[block * kGroup + k] = largest;
    }
  }
  join_neighbours<kGroup * 8>(whole, half);
  join_neighbours<kGroup * 4>(half, whole);
  join_neighbours<kGroup * 2>(whole, half);
  join_neighbours<kGroup>(half, whole);
  for (int64_t block = 0; block < kGroup; ++block) high[block] = larger(high[block], whole[block]);
}

// Runs of a block each, the first of them `left_in_block` long; high[0] belongs to that.
FQ_CLONES void block_magnitudes(const float* x, int64_t count, int64_t left_in_block, int64_t block, int32_t* high) {
  int64_t done = 0;
  if (left_in_block == block && (block == kGroup || block == 2 * kGroup)) {
    for (; done + kGroup * block <= count; done += kGroup * block, high += kGroup) {
      block == kGroup ? short_block_magnitudes<1>(x + done, high) : short_block_magnitudes<2>(x + done, high);
    }
  }
  for (int64_t part = std::min(left_in_block, count - done); done < count; ++high) {
    *high = larger(*high, largest_magnitude(x + done, part));
    done += part;
    part = std::min(block, count - done);
  }
}

FQ_CLONES void block_bounds(const float* x, int64_t count, int64_t left_in_block, int64_t block, int32_t* low,
                            int32_t* high) {
  int64_t part = std::min(left_in_block, count);
  for (int64_t done = 0; done < count; ++low, ++high) {
    int32_t lowest = *low;
    int32_t highest = *high;
    for (int64_t i = done; i < done + part; ++i) {
      const int32_t key = finite_order_key(x[i]);
      lowest = smaller(lowest, key);
      highest = larger(highest, key);
    }
    *low = lowest;
    *high = highest;
    done += part;
    part = std::min(block, count - done);
  }
}

// A range for each element of a row.
FQ_CLONES void row_magnitudes(const float* x, int64_t count, int32_t* high) {
  for (int64_t i = 0; i < count; ++i) high[i] = larger(high[i], finite_magnitude(x[i]));
}

FQ_CLONES void row_bounds(const float* x, int64_t count, int32_t* low, int32_t* high) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = finite_order_key(x[i]);
    low[i] = smaller(low[i], key);
    high[i] = larger(high[i], key);
  }
}

}  // namespace

void BlockRanges::add(ElementType type, const void* x, const ParamLayout& layout, int64_t begin, int64_t end) {
  read_as_floats(type, x, begin, end, [&](const float* floats, int64_t part_begin, int64_t part_end) {
    add_floats(floats, layout, part_begin, part_end);
  });
}

void BlockRanges::add_floats(const float* x, const ParamLayout& layout, int64_t begin, int64_t end) {
  LayoutCursor cursor(layout, begin);
  const LayoutDim& row = cursor.row();
  const bool range_per_element = row.block == 1 && row.params != 1;
  while (begin < end) {
    const int64_t count = std::min(end - begin, row.size - cursor.column());
    const int64_t left_in_block = row.block - cursor.column() % row.block;
    const int64_t param = cursor.param_base() + cursor.column() / row.block - first_;
    int32_t* high = high_.data() + param;
    if (by_magnitude_) {
      range_per_element ? row_magnitudes(x, count, high) : block_magnitudes(x, count, left_in_block, row.block, high);
    } else {
      int32_t* low = low_.data() + param;
      range_per_element ? row_bounds(x, count, low, high)
                        : block_bounds(x, count, left_in_block, row.block, low, high);
    }
    x += count;
    begin += count;
    cursor.next_row();
  }
}

void BlockRanges::merge(const BlockRanges& other) {
  for (size_t i = 0; i < high_.size(); ++i) high_[i] = larger(high_[i], other.high_[i]);
  for (size_t i = 0; i < low_.size(); ++i) low_[i] = smaller(low_[i], other.low_[i]);
}

}  // namespace cpu
}  // namespace onnxfq
