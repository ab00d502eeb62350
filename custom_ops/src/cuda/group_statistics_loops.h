// Statistics by groups on a GPU: what one thread of a block does. A block takes one group, or a part of one, and
// counts it as a block of merge_statistics_loops.h counts a part of a tensor.
#pragma once

#include <algorithm>

#include "device_layout.h"
#include "merge_statistics_loops.h"

namespace onnxfq {
namespace cuda {

// Places of the elements of a group. A group is numbered as its scale is.
class GroupLayout {
 public:
  // layout: of one element at least. Throws where it has too many dimensions.
  explicit GroupLayout(const ParamLayout& layout)
      : rank_(static_cast<int>(layout.dims().size())), groups_(layout.param_count()) {
    check_rank(layout);
    int64_t step = 1;
    for (int d = rank_ - 1; d >= 0; --d) {
      const LayoutDim& dim = layout.dims()[static_cast<size_t>(d)];
      const int64_t block = dim.block < dim.size ? dim.block : dim.size;
      dims_[d] = {Divider<int64_t>(block), Divider<int64_t>(dim.params), dim.size, step};
      step *= dim.size;
      places_ *= block;
    }
  }

  int64_t groups() const { return groups_; }

  // Places of a group: as many as elements in the largest. Some of a group at the end of a dimension are empty.
  FQ_HD FQ_INLINE int64_t places() const { return places_; }

  // Numbers of a group along each dimension.
  struct Group {
    int64_t first[kMostDims];  // index of its first element
  };

  FQ_HD FQ_INLINE Group group(int64_t number) const {
    Group found;
    FQ_UNROLL
    for (int d = kMostDims - 1; d >= 0; --d) {
      if (d >= rank_) continue;
      const int64_t outer = dims_[d].params(number);
      found.first[d] = (number - outer * dims_[d].params.divisor()) * dims_[d].block.divisor();
      number = outer;
    }
    return found;
  }

  // The element at a place of a group, -1 for an empty one.
  FQ_HD FQ_INLINE int64_t element(const Group& group, int64_t place) const {
    int64_t found = 0;
    bool empty = false;
    FQ_UNROLL
    for (int d = kMostDims - 1; d >= 0; --d) {
      if (d >= rank_) continue;
      const int64_t outer = dims_[d].block(place);
      const int64_t index = group.first[d] + place - outer * dims_[d].block.divisor();
      empty |= index >= dims_[d].size;
      found += index * dims_[d].step;
      place = outer;
    }
    return empty ? -1 : found;
  }

 private:
  struct Dim {
    Divider<int64_t> block;   // elements of a group along it
    Divider<int64_t> params;  // groups along it
    int64_t size;
    int64_t step;  // distance of its elements in memory
  };

  int rank_;
  int64_t groups_;
  int64_t places_ = 1;
  Dim dims_[kMostDims] = {};
};

// The part of a group that a block takes: places [begin, end) of group number `group`.
struct GroupPart {
  int64_t group;
  int64_t begin;
  int64_t end;

  // block: of groups * parts, as many of a group in a row.
  FQ_HD FQ_INLINE static GroupPart of(int64_t block, int64_t parts, int64_t places) {
    const int64_t group = block / parts;
    const int64_t part = block - group * parts;
    const int64_t size = (places + parts - 1) / parts;
    const int64_t begin = part * size < places ? part * size : places;
    return {group, begin, begin + size < places ? begin + size : places};
  }
};

// Elements that a thread has in flight.
constexpr int kGroupInFlight = 4;

template <ElementType T, bool Histogram>
FQ_HD FQ_INLINE void count_group(const void* elements, const GroupLayout& layout, const GroupPart& part,
                                 const Place& place, BlockCounts<Histogram>& block, int64_t* state) {
  const typename Element<T>::Stored* const x = static_cast<const typename Element<T>::Stored*>(elements);
  Tally<T, Histogram> tally(block, state, place);
  const GroupLayout::Group group = layout.group(part.group);
  uint32_t seen = 0;
  for (int64_t first = part.begin + place.thread; first < part.end; first += kGroupInFlight * place.threads) {
    typename Element<T>::Stored loaded[kGroupInFlight];
    bool there[kGroupInFlight];
    FQ_UNROLL
    for (int i = 0; i < kGroupInFlight; ++i) {
      const int64_t at = first + i * place.threads;
      const int64_t element = at < part.end ? layout.element(group, at) : -1;
      there[i] = element >= 0;
      if (there[i]) loaded[i] = x[element];
    }
    FQ_UNROLL
    for (int i = 0; i < kGroupInFlight; ++i) {
      if (!there[i]) continue;
      tally.add_single(Element<T>::read(loaded[i]));
      ++seen;
    }
  }
  tally.finish(block, place);
  seen = over_warp(seen, [](uint32_t a, uint32_t b) { return a + b; });
  if (first_of_warp(place.thread)) atomic_add(&block.elements, seen);
}

}  // namespace cuda
}  // namespace onnxfq
