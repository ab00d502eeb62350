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
  explicit DeviceLayout(const ParamLayout& layout) : rank_(static_cast<int>(layout.dims().size())) {
    check_rank(layout);
    for (int d = 0; d < rank_; ++d) {
      const LayoutDim& dim = layout.dims()[static_cast<size_t>(d)];
      dims_[d] = {Divider<Index>(dim.size), Divider<Index>(dim.block < dim.size ? dim.block : dim.size),
                  static_cast<Index>(dim.stride)};
    }
  }

  FQ_HD FQ_INLINE Reach<Index> at(int64_t element_index) const {
    const Index element = static_cast<Index>(element_index);
    const Dim& row = dims_[rank_ - 1];
    const Index outside = rank_ > 1 ? row.size(element) : 0;
    const Index column = element - outside * row.size.divisor();
    const Index block = row.block(column);
    Index param = block * row.stride;
    Index rest = outside;
    FQ_NO_UNROLL
    for (int d = rank_ - 2; d >= 0; --d) {
      const Index outer = d > 0 ? dims_[d].size(rest) : 0;
      if (dims_[d].stride != 0) {
        param += dims_[d].block(rest - outer * dims_[d].size.divisor()) * dims_[d].stride;
      }
      rest = outer;
    }
    const Index in_block = (block + 1) * row.block.divisor() - column;
    const Index in_row = row.size.divisor() - column;
    return {param, in_block < in_row ? in_block : in_row, in_row};
  }

  // Whether each of the next `count` elements has the next scale, as along the last axis of a tensor.
  FQ_HD FQ_INLINE bool consecutive(const Reach<Index>& reach, int count) const {
    const Dim& row = dims_[rank_ - 1];
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
    const Dim& row = dims_[rank_ - 1];
    reach.param += row.stride;
    reach.in_block = row.block.divisor() < reach.in_row ? row.block.divisor() : reach.in_row;
  }

 private:
  struct Dim {
    Divider<Index> size;
    Divider<Index> block;
    Index stride;
  };

  int rank_;
  Dim dims_[kMostDims] = {};
};

}  // namespace cuda
}  // namespace onnxfq
