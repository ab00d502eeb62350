// ParamLayout as a kernel takes it: by value, and with divisions that are multiplications.
#pragma once

#include <stdexcept>
#include <string>

#include "divider.h"
#include "onnxfq/param_layout.h"

namespace onnxfq {
namespace cuda {

// Dimensions after joining: more than tensors of networks have.
constexpr int kMostDims = 8;

// Elements of which every index, and one step beyond them, fits into 32 bits.
constexpr int64_t kMostOfShortIndex = int64_t{1} << 30;

inline void check_rank(const ParamLayout& layout) {
  const size_t rank = layout.dims().size();
  if (rank > static_cast<size_t>(kMostDims)) {
    throw std::runtime_error("scale has " + std::to_string(rank) + " block dimensions, on CUDA at most " +
                             std::to_string(kMostDims) + "; run this node on the CPU");
  }
}

// The scale of an element, and how far it reaches.
template <typename Index>
struct Reach {
  Index param;
  Index in_block;  // elements from this one on that share it
  Index in_row;    // elements from this one on to the end of the innermost dimension
};

// Index: int64_t, or int32_t for at most kMostOfShortIndex elements, which takes a third of the instructions.
template <typename Index>
class DeviceLayout {
 public:
  // layout: of one element at least. Throws where it has too many dimensions.
  explicit DeviceLayout(const ParamLayout& layout) {
    check_rank(layout);
    const size_t rank = layout.dims().size();
    for (size_t d = 0; d < rank; ++d) {
      const LayoutDim& dim = layout.dims()[rank - 1 - d];
      Dim& made = dims_[d];
      made.length = static_cast<Index>(dim.size);
      if (d + 1 < rank) made.size = Divider<Index>(dim.size);
      made.block = Divider<Index>(dim.block < dim.size ? dim.block : dim.size);
      made.stride = static_cast<Index>(dim.stride);
      if (dim.stride != 0) used_ = static_cast<int>(d) + 1;
    }
  }

  FQ_HD FQ_INLINE Reach<Index> at(int64_t element_index) const {
    // The two innermost by themselves: at places that the compiler knows, where no load has to wait for another.
    const Dim& row = dims_[0];
    Index rest = static_cast<Index>(element_index);
    const Index column = row.take_index(rest);
    const Index block = row.block(column);
    Index param = block * row.stride;
    if (used_ > 1) {
      param += dims_[1].block(dims_[1].take_index(rest)) * dims_[1].stride;
      FQ_NO_UNROLL
      for (int d = 2; d < used_; ++d) param += dims_[d].block(dims_[d].take_index(rest)) * dims_[d].stride;
    }
    const Index in_block = (block + 1) * row.block.divisor() - column;
    const Index in_row = row.length - column;
    return {param, in_block < in_row ? in_block : in_row, in_row};
  }

  // Whether each of the next `count` elements has the next scale, as along the last axis of a tensor.
  FQ_HD FQ_INLINE bool consecutive(const Reach<Index>& reach, int count) const {
    const Dim& row = dims_[0];
    return row.block.divisor() == 1 && row.stride == 1 && reach.in_row >= count;
  }

  // From `reach` of an element to `reach` of the next one, which stands at `next`.
  FQ_HD FQ_INLINE void advance(Reach<Index>& reach, int64_t next) const {
    --reach.in_block;
    --reach.in_row;
    if (reach.in_block > 0) return;
    if (reach.in_row == 0) {
      reach = at(next);
      return;
    }
    const Dim& row = dims_[0];
    reach.param += row.stride;
    reach.in_block = row.block.divisor() < reach.in_row ? row.block.divisor() : reach.in_row;
  }

 private:
  struct Dim {
    Divider<Index> size;  // 0 for the outermost one: nothing is left behind it
    Divider<Index> block;
    Index length;
    Index stride;

    // Returns the index along this dimension, and leaves the index of the outer ones in `rest`.
    FQ_HD FQ_INLINE Index take_index(Index& rest) const {
      const Index all = rest;
      rest = size(all);
      return all - rest * length;
    }
  };

  int used_ = 1;               // dimensions up to the last that scales differ along
  Dim dims_[kMostDims] = {};  // the innermost one first
};

}  // namespace cuda
}  // namespace onnxfq
