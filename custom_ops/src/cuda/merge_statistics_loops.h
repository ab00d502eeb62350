// Statistics on a GPU: what one thread of a block does, between the points where the block waits for all.
//
// A block counts in a table of its own, in shared memory, and adds it to the state once, at its end. The table has
// the bins of magnitudes from 2^-38 to 2^24, which tensors of networks keep to; zeros are counted aside, and the rare
// others in the state at once. A thread joins what comes in a row: constant regions cost no more than one addition.
#pragma once

#include "atomics.h"
#include "packets.h"

namespace onnxfq {
namespace cuda {

constexpr int32_t kBinsOfExponent = 1 << (kFloat32MantissaBits - kDroppedBits);
constexpr int32_t kTableBegin = (kFloat32Bias - 38) * kBinsOfExponent;
constexpr int32_t kTableSide = 62 * kBinsOfExponent;  // of each sign; two tables fit into 64 KB, the least GPUs have

// Elements that a block takes at most: its counters have 32 bits.
constexpr int64_t kMostOfBlock = int64_t{1} << 31;

// What a block knows, in shared memory. Slot 2 b of the table is bin kTableBegin + b, slot 2 b + 1 that of the same
// magnitudes below 0.
template <bool Histogram>
struct BlockCounts {
  static constexpr int kTableSize = Histogram ? 2 * kTableSide : 0;

  int32_t min_key;
  int32_t max_key;
  uint32_t elements;
  uint32_t nans;
  uint32_t infinities;
  uint32_t zeros;
  uint32_t table[Histogram ? kTableSize : 1];

  FQ_HD FQ_INLINE void clear(const Place& place) {
    if (place.thread == 0) {
      min_key = INT32_MAX;
      max_key = INT32_MIN;
      elements = nans = infinities = zeros = 0;
    }
    for (int i = place.thread; i < kTableSize; i += place.threads) table[i] = 0;
  }

  // Adds what all threads of the block have counted to the state.
  FQ_HD FQ_INLINE void merge_into(int64_t* state, const Place& place) const {
    if (place.thread == 0) {
      atomic_min(&state[kStateMinKey], static_cast<int64_t>(min_key));
      atomic_max(&state[kStateMaxKey], static_cast<int64_t>(max_key));
      atomic_add(&state[kStateElements], static_cast<int64_t>(elements));
      if (nans) atomic_add(&state[kStateNans], static_cast<int64_t>(nans));
      if (infinities) atomic_add(&state[kStateInfinities], static_cast<int64_t>(infinities));
      if (zeros) {
        atomic_add(&state[kStateZeros], static_cast<int64_t>(zeros));
        if (Histogram) atomic_add(&state[kStateHeader], static_cast<int64_t>(zeros));  // bin 0
      }
    }
    for (int i = place.thread; i < kTableSize; i += place.threads) {
      if (table[i] == 0) continue;
      const int32_t bin = kTableBegin + i / 2 + (i % 2) * kNegativeBin;
      atomic_add(&state[kStateHeader + bin], static_cast<int64_t>(table[i]));
    }
  }
};

// What a thread knows.
template <bool Histogram>
struct Tally {
  int64_t* state;
  SharedCounters table;
  int32_t min_key = INT32_MAX;
  int32_t max_key = INT32_MIN;
  uint32_t elements = 0;
  uint32_t nans = 0;
  uint32_t infinities = 0;
  uint32_t zeros = 0;
  uint32_t run_slot = 0;
  uint32_t run = 0;  // values of run_slot that are not counted yet

  FQ_HD FQ_INLINE Tally(BlockCounts<Histogram>& block, int64_t* s) : state(s), table(block.table) {}

  // Counts x, unless it is one of the rare ones; false for those.
  FQ_HD FQ_INLINE bool add_usual(float x) {
    const uint32_t bits = float_bits(x);
    const uint32_t magnitude = bits & kMagnitudeMask;
    const uint32_t above = bin_of(magnitude) - kTableBegin;  // wraps around below it
    const bool zero = magnitude == 0;                        // -0 too
    const bool in_table = above < kTableSide;
    zeros += zero ? 1 : 0;
    if (in_table) {
      add_key(bits);
      if (Histogram) {
        const uint32_t slot = 2 * above + (bits >> 31);
        const bool same = slot == run_slot;
        if (!same) table.add(run_slot, run);
        run_slot = slot;
        run = same ? run + 1 : 1;
      }
    }
    return in_table | zero;
  }

  // Counts x if add_usual has not.
  FQ_HD FQ_INLINE void add_rare(float x) {
    const uint32_t bits = float_bits(x);
    const uint32_t magnitude = bits & kMagnitudeMask;
    if (magnitude == 0 || bin_of(magnitude) - kTableBegin < kTableSide) return;
    if (magnitude > kInfinityBits) {
      ++nans;
    } else if (magnitude == kInfinityBits) {
      ++infinities;
    } else {
      add_key(bits);
      if (Histogram) atomic_add(&state[kStateHeader + static_cast<int32_t>(bin_of(bits))], int64_t{1});
    }
  }

  // Hands everything to the block.
  FQ_HD FQ_INLINE void finish(BlockCounts<Histogram>& block, const Place& place) {
    if (Histogram) table.add(run_slot, run);
    if (zeros) add_key(0);
    const auto sum = [](uint32_t a, uint32_t b) { return a + b; };
    const int32_t low = over_warp(min_key, [](int32_t a, int32_t b) { return a < b ? a : b; });
    const int32_t high = over_warp(max_key, [](int32_t a, int32_t b) { return a > b ? a : b; });
    const uint32_t counts[4] = {over_warp(elements, sum), over_warp(nans, sum), over_warp(infinities, sum),
                                over_warp(zeros, sum)};
    if (!first_of_warp(place.thread)) return;
    atomic_min(&block.min_key, low);
    atomic_max(&block.max_key, high);
    atomic_add(&block.elements, counts[0]);
    if (counts[1]) atomic_add(&block.nans, counts[1]);
    if (counts[2]) atomic_add(&block.infinities, counts[2]);
    if (counts[3]) atomic_add(&block.zeros, counts[3]);
  }

 private:
  FQ_HD FQ_INLINE void add_key(uint32_t bits) {
    const int32_t key = order_key(bits);
    min_key = key < min_key ? key : min_key;
    max_key = key > max_key ? key : max_key;
  }
};

template <ElementType T, bool Histogram>
FQ_HD FQ_INLINE void count_elements(const void* elements, const Packets& range, const Place& place,
                                    BlockCounts<Histogram>& block, int64_t* state) {
  const typename Element<T>::Stored* const x = static_cast<const typename Element<T>::Stored*>(elements);
  Tally<Histogram> tally(block, state);
  for_elements<T>(
      elements, range, place,
      [&](const Packet<T>& packet, int64_t first) {
        bool all_usual = true;
        FQ_UNROLL
        for (int k = 0; k < Packet<T>::kSize; ++k) all_usual &= tally.add_usual(Element<T>::read(packet.element[k]));
        tally.elements += Packet<T>::kSize;
        if (all_usual) return;
        FQ_NO_UNROLL
        for (int k = 0; k < Packet<T>::kSize; ++k) tally.add_rare(Element<T>::read(x[first + k]));
      },
      [&](int64_t i) {
        const float value = Element<T>::read(x[i]);
        ++tally.elements;
        tally.add_usual(value);
        tally.add_rare(value);
      });
  tally.finish(block, place);
}

}  // namespace cuda
}  // namespace onnxfq
