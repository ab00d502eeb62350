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

// The scale of an element, and how far it reaches.
struct Reach {
  int64_t param;
  int64_t in_block;  // elements from this one on that share it
  int64_t in_row;    // elements from this one on to the end of the innermost dimension
};

class DeviceLayout {
 public:
  // layout: of one element at least. Throws where it has too many dimensions.
  explicit DeviceLayout(const ParamLayout& layout) : rank_(static_cast<int>(layout.dims().size())) {
    if (rank_ > kMostDims) {
      throw std::runtime_error("scale has " + std::to_string(rank_) + " block dimensions, on CUDA at most " +
                               std::to_string(kMostDims) + "; run this node on the CPU");
    }
    for (int d = 0; d < rank_; ++d) {
      const LayoutDim& dim = layout.dims()[static_cast<size_t>(d)];
      dims_[d] = {Divider(dim.size), Divider(dim.block < dim.size ? dim.block : dim.size), dim.stride};
    }
  }

  FQ_HD FQ_INLINE Reach at(int64_t element) const {
    const Dim& row = dims_[rank_ - 1];
    const int64_t outside = rank_ > 1 ? row.size(element) : 0;
    const int64_t column = element - outside * row.size.divisor();
    const int64_t block = row.block(column);
    int64_t param = block * row.stride;
    int64_t rest = outside;
    FQ_NO_UNROLL
    for (int d = rank_ - 2; d >= 0; --d) {
      const int64_t outer = d > 0 ? dims_[d].size(rest) : 0;
      if (dims_[d].stride != 0) {
        param += dims_[d].block(rest - outer * dims_[d].size.divisor()) * dims_[d].stride;
      }
      rest = outer;
    }
    const int64_t in_block = (block + 1) * row.block.divisor() - column;
    const int64_t in_row = row.size.divisor() - column;
    return {param, in_block < in_row ? in_block : in_row, in_row};
  }

  // From `reach` of an element to that of the next one, which stands at `next`.
  FQ_HD FQ_INLINE void advance(Reach& reach, int64_t next) const {
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
    Divider size;
    Divider block;
    int64_t stride;
  };

  int rank_;
  Dim dims_[kMostDims] = {};
};

}  // namespace cuda
}  // namespace onnxfq
