// The range of each block of x, as integers that sort as the floats do.
#pragma once

#include <vector>

#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cpu {

// Ranges of blocks `first` ... `first + count - 1`. All hold 0; NaN and infinities do not count.
class BlockRanges {
 public:
  // by_magnitude: only the largest magnitude is kept.
  BlockRanges(bool by_magnitude, int64_t first, int64_t count)
      : by_magnitude_(by_magnitude), first_(first), low_(static_cast<size_t>(by_magnitude ? 0 : count)),
        high_(static_cast<size_t>(count)) {}

  // Takes elements [begin, end) of x into account.
  void add(ElementType type, const void* x, const ParamLayout& layout, int64_t begin, int64_t end);

  // Takes the ranges of the same blocks over other elements into account.
  void merge(const BlockRanges& other);

  int64_t first() const { return first_; }
  int64_t count() const { return static_cast<int64_t>(high_.size()); }

  // [count()]: magnitude bits when by_magnitude, order keys otherwise; low() only then.
  const int32_t* low() const { return low_.data(); }
  const int32_t* high() const { return high_.data(); }

 private:
  void add_floats(const float* x, const ParamLayout& layout, int64_t begin, int64_t end);

  bool by_magnitude_;
  int64_t first_;
  std::vector<int32_t> low_;
  std::vector<int32_t> high_;
};

}  // namespace cpu
}  // namespace onnxfq
