// How many elements a shape has, for shapes that anyone may give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace onnxfq {

// The product of the sizes from `first` on; -1 where one of them is negative or the product leaves int64.
inline int64_t checked_product(const std::vector<int64_t>& sizes, size_t first = 0) {
  int64_t count = 1;
  bool empty = false;
  bool fits = true;
  for (size_t d = first; d < sizes.size(); ++d) {
    if (sizes[d] < 0) return -1;
    if (sizes[d] == 0) {
      empty = true;
    } else if (count > std::numeric_limits<int64_t>::max() / sizes[d]) {
      fits = false;
    } else {
      count *= sizes[d];
    }
  }
  return empty ? 0 : fits ? count : -1;
}

}  // namespace onnxfq
