// The range of each block of x on a GPU: what one thread does. Ranges are integers that sort as the floats do.
#pragma once

#include "atomics.h"
#include "device_layout.h"
#include "packets.h"

namespace onnxfq {
namespace cuda {

// [param_count] each, 0 at first: the largest magnitude of each block when low is nullptr, else order keys.
struct RangeArrays {
  int32_t* low;
  int32_t* high;
};

// Range of the values that a thread has seen of its block; threads meet in the arrays when they leave a block.
template <bool ByMagnitude>
struct BlockRange {
  RangeArrays arrays;
  int64_t param = 0;
  int32_t low = 0;
  int32_t high = 0;

  FQ_HD FQ_INLINE explicit BlockRange(const RangeArrays& a) : arrays(a) {}

  FQ_HD FQ_INLINE void enter(int64_t next) {
    if (next == param) return;
    hand_over();
    param = next;
    low = high = 0;
  }

  FQ_HD FQ_INLINE void add(float x) {
    const int32_t key = ByMagnitude ? finite_magnitude(x) : finite_order_key(x);
    high = key > high ? key : high;
    if (!ByMagnitude) low = key < low ? key : low;
  }

  FQ_HD FQ_INLINE void hand_over() const {
    if (high > 0) atomic_max(&arrays.high[param], high);
    if (!ByMagnitude && low < 0) atomic_min(&arrays.low[param], low);
  }

  // The end: warps whose threads are in one block, as in a tensor with one scale, go as one.
  FQ_HD FQ_INLINE void finish(int thread) {
    if (!same_over_warp(param)) {
      hand_over();
      return;
    }
    high = over_warp(high, [](int32_t a, int32_t b) { return a > b ? a : b; });
    if (!ByMagnitude) low = over_warp(low, [](int32_t a, int32_t b) { return a < b ? a : b; });
    if (first_of_warp(thread)) hand_over();
  }
};

template <ElementType T, bool ByMagnitude, typename Index>
FQ_HD FQ_INLINE void find_ranges(const void* elements, const Packets& range, const DeviceLayout<Index>& layout,
                                 const RangeArrays& arrays, const Place& place) {
  const typename Element<T>::Stored* const x = static_cast<const typename Element<T>::Stored*>(elements);
  BlockRange<ByMagnitude> seen(arrays);
  for_elements<T>(
      elements, range, place,
      [&](const Packet<T>& packet, int64_t first) {
        constexpr int kSize = Packet<T>::kSize;
        Reach<Index> reach = layout.at(first);
        if (reach.in_block >= kSize) {
          seen.enter(reach.param);
          FQ_UNROLL
          for (int k = 0; k < kSize; ++k) seen.add(Element<T>::read(packet.element[k]));
          return;
        }
        FQ_NO_UNROLL
        for (int k = 0; k < kSize; ++k) {
          seen.enter(reach.param);
          seen.add(Element<T>::read(x[first + k]));
          layout.advance(reach, first + k + 1);
        }
      },
      [&](int64_t i) {
        seen.enter(layout.at(i).param);
        seen.add(Element<T>::read(x[i]));
      });
  seen.finish(place.thread);
}

}  // namespace cuda
}  // namespace onnxfq
