// Statistics on a GPU: what one thread of a block does, between the points where the block waits for all.
//
// A block counts in its own table, in shared memory, and adds it to the state once, at its end. The table has
// the bins of magnitudes from 2^-38 to 2^24, which tensors of networks keep to. A packet of such values and zeros, the
// usual case, is counted without a branch; others, element by element, those outside of the table in the state at
// once. Packets that repeat one word, as in constant regions, are only counted, and added when another one comes.
// Zeros are what is left of all elements when the others are subtracted.
#pragma once

#include <type_traits>

#include "atomics.h"
#include "packets.h"
#include "range_of_words.h"

namespace onnxfq {
namespace cuda {

constexpr int32_t kBinsOfExponent = 1 << (kFloat32MantissaBits - kDroppedBits);
constexpr int32_t kTableBegin = (kFloat32Bias - 38) * kBinsOfExponent;
constexpr int32_t kTableSide = 62 * kBinsOfExponent;  // a sign; two tables fit into 64 KB, the least GPUs have
constexpr int32_t kTableEnd = kTableBegin + kTableSide;
constexpr uint32_t kBitsOfBin = 1u << kDroppedBits;

constexpr int kIdleSlots = 32;

// Elements that a block takes at most: its counters have 32 bits.
constexpr int64_t kMostOfBlock = int64_t{1} << 31;

// State of a block, in shared memory. Slot 2 b of the table is bin kTableBegin + b, slot 2 b + 1 the bin of the same
// magnitudes below 0.
template <bool Histogram>
struct BlockCounts {
  static constexpr int kTableSize = Histogram ? 2 * kTableSide : 0;

  int32_t min_key;
  int32_t max_key;
  uint32_t nans;
  uint32_t infinities;
  uint32_t elements;  // elements of a group; the launch knows them for a whole tensor
  uint32_t zeros;     // without a histogram
  uint32_t not_zero;  // finite values that are not 0, with a histogram
  // Behind the bins a slot for each thread of a warp, which nobody reads.
  uint32_t table[Histogram ? kTableSize + kIdleSlots : 1];

  FQ_HD FQ_INLINE void clear(const Place& place) {
    if (place.thread == 0) {
      min_key = INT32_MAX;
      max_key = INT32_MIN;
      nans = infinities = elements = zeros = not_zero = 0;
    }
    if constexpr (Histogram) {
      for (int i = place.thread; i < kTableSize + kIdleSlots; i += place.threads) table[i] = 0;
    }
  }

  // Adds what all threads of the block have put into the table to the state.
  FQ_HD FQ_INLINE void add_table(int64_t* state, const Place& place) {
    if constexpr (Histogram) {
      uint32_t sum = 0;
      for (int i = place.thread; i < kTableSize; i += place.threads) {
        const uint32_t counted = table[i];
        if (counted == 0) continue;
        sum += counted;
        const int32_t bin = kTableBegin + i / 2 + (i % 2) * kNegativeBin;
        atomic_add(&state[kStateHeader + bin], static_cast<int64_t>(counted));
      }
      sum = over_warp(sum, [](uint32_t a, uint32_t b) { return a + b; });
      if (first_of_warp(place.thread)) atomic_add(&not_zero, sum);
    }
  }

  // Adds the numbers that stand before a state's bins. elements: all that the block has seen, or, with a histogram,
  // more in one block and fewer in others: the sums over all blocks come out right.
  FQ_HD FQ_INLINE void add_numbers(int64_t elements, int64_t* state, const Place& place) const {
    if (place.thread != 0) return;
    atomic_min(&state[kStateMinKey], static_cast<int64_t>(min_key));
    atomic_max(&state[kStateMaxKey], static_cast<int64_t>(max_key));
    if (elements) atomic_add(&state[kStateElements], elements);
    if (nans) atomic_add(&state[kStateNans], static_cast<int64_t>(nans));
    if (infinities) atomic_add(&state[kStateInfinities], static_cast<int64_t>(infinities));
    const int64_t left = Histogram ? elements - static_cast<int64_t>(nans) - static_cast<int64_t>(infinities) -
                                         static_cast<int64_t>(not_zero)
                                   : static_cast<int64_t>(zeros);
    if (left == 0) return;
    atomic_add(&state[kStateZeros], left);
    if (Histogram) atomic_add(&state[kStateHeader], left);  // bin 0
  }
};

// State of a thread.
template <ElementType T, bool Histogram>
class Tally {
 public:
  FQ_HD FQ_INLINE Tally(BlockCounts<Histogram>& block, int64_t* state, const Place& place)
      : state_(state),
        table_(block.table),
        idle_(static_cast<uint32_t>(BlockCounts<Histogram>::kTableSize + place.thread % kIdleSlots)) {}

  FQ_HD FQ_INLINE void add(const Packet<T>& packet) {
    uint32_t words[kWords];
    memcpy(words, &packet, sizeof words);
    if (((words[0] ^ run_word_) | (words[1] ^ run_word_) | (words[2] ^ run_word_) | (words[3] ^ run_word_)) == 0) {
      ++run_;
      return;
    }
    if (run_) add_run();
    run_word_ = words[0];
    if (all_usual(words)) {
      FQ_UNROLL
      for (int w = 0; w < kWords; ++w) add_usual(words[w]);
    } else {
      FQ_NO_UNROLL
      for (int w = 0; w < kWords; ++w) {
        // Not an index into the words: that would have to lie in memory.
        add_word(w < 2 ? (w == 0 ? words[0] : words[1]) : (w == 2 ? words[2] : words[3]), 1);
      }
    }
  }

  // Adds one value that stands alone: repetitions of the last one are only counted.
  FQ_HD FQ_INLINE void add_single(float x) {
    const uint32_t bits = float_bits(x);
    if (bits == single_) {
      ++singles_;
      return;
    }
    if (singles_) add_any(float_from_bits(single_), singles_);
    single_ = bits;
    singles_ = 1;
  }

  // Adds one value `times` times.
  FQ_HD FQ_INLINE void add_any(float x, uint32_t times) {
    const uint32_t bits = float_bits(x);
    const uint32_t magnitude = bits & kMagnitudeMask;
    if (magnitude > kInfinityBits) {
      nans_ += times;
      return;
    }
    if (magnitude == kInfinityBits) {
      infinities_ += times;
      return;
    }
    range_.add_value(x);
    if (!Histogram) {
      zeros_ += magnitude == 0 ? times : 0;
    } else if (in_table(magnitude)) {
      table_.add(slot_of(bits), times);
    } else if (magnitude != 0) {
      not_zero_ += times;
      atomic_add(&state_[kStateHeader + static_cast<int32_t>(bin_of(bits))], static_cast<int64_t>(times));
    }
  }

  // Hands everything to the block. Every thread of the block calls it.
  FQ_HD FQ_INLINE void finish(BlockCounts<Histogram>& block, const Place& place) {
    if (run_) add_run();
    if (singles_) add_any(float_from_bits(single_), singles_);
    // + 0 makes 0 of -0. Without a finite value these are infinities, of the wrong sign.
    const float low = range_.low() + 0.0f;
    const float high = range_.high() + 0.0f;
    const int32_t min_key = low <= high ? order_key(float_bits(low)) : INT32_MAX;
    const int32_t max_key = low <= high ? order_key(float_bits(high)) : INT32_MIN;
    const auto sum = [](uint32_t a, uint32_t b) { return a + b; };
    const int32_t least = over_warp(min_key, [](int32_t a, int32_t b) { return a < b ? a : b; });
    const int32_t most = over_warp(max_key, [](int32_t a, int32_t b) { return a > b ? a : b; });
    const uint32_t counts[4] = {over_warp(nans_, sum), over_warp(infinities_, sum),
                                Histogram ? 0 : over_warp(zeros_, sum), Histogram ? over_warp(not_zero_, sum) : 0};
    if (!first_of_warp(place.thread)) return;
    atomic_min(&block.min_key, least);
    atomic_max(&block.max_key, most);
    if (counts[0]) atomic_add(&block.nans, counts[0]);
    if (counts[1]) atomic_add(&block.infinities, counts[1]);
    if (counts[2]) atomic_add(&block.zeros, counts[2]);
    if (counts[3]) atomic_add(&block.not_zero, counts[3]);
  }

 private:
  static constexpr int kWords = kWordsOfPacket;

  static FQ_HD FQ_INLINE bool in_table(uint32_t magnitude) {
    return bin_of(magnitude) - kTableBegin < kTableSide;  // wraps around below it
  }
  static FQ_HD FQ_INLINE uint32_t slot_of(uint32_t bits) {
    return 2 * (bin_of(bits & kMagnitudeMask) - kTableBegin) + (bits >> 31);
  }

  // Whether all elements are in the table or 0; without a histogram, whether they are finite.
  static FQ_HD FQ_INLINE bool all_usual(const uint32_t (&words)[kWords]) {
    // All finite float16 are in the table.
    constexpr bool kFinite = !Histogram || T == ElementType::kFloat16;
    std::conditional_t<kFinite, AllFinite<T>, AllWithin<T, kTableBegin * kBitsOfBin, kTableEnd * kBitsOfBin>> usual;
    FQ_UNROLL
    for (int w = 0; w < kWords; ++w) usual.add(words[w]);
    return usual.result();
  }

  FQ_HD FQ_INLINE void add_usual(uint32_t word) {
    range_.add(word);
    FQ_UNROLL
    for (int k = 0; k < kElementsOfWord<T>; ++k) {
      const uint32_t bits = float_bits(element_of<T>(word, k));
      const bool zero = (bits & kMagnitudeMask) == 0;
      if (Histogram) {
        // Not a branch around it, and not one place for the zeros of all.
        table_.add_one(zero ? idle_ : slot_of(bits));
      } else {
        zeros_ += zero ? 1 : 0;
      }
    }
  }

  // Adds the elements of a word, each `times` times.
  FQ_HD FQ_INLINE void add_word(uint32_t word, uint32_t times) {
    FQ_UNROLL
    for (int k = 0; k < kElementsOfWord<T>; ++k) add_any(element_of<T>(word, k), times);
  }

  FQ_HD FQ_INLINE void add_run() {
    add_word(run_word_, run_ * kWords);
    run_ = 0;
  }

  int64_t* state_;
  SharedCounters table_;
  uint32_t idle_;
  RangeOfWords<T> range_;
  uint32_t nans_ = 0;
  uint32_t infinities_ = 0;
  uint32_t zeros_ = 0;
  uint32_t not_zero_ = 0;  // and not in the table
  uint32_t run_word_ = 0;
  uint32_t run_ = 0;  // packets of run_word_ that are not added yet
  uint32_t single_ = 0;
  uint32_t singles_ = 0;  // values that are single_ and not added yet
};

template <ElementType T, bool Histogram>
FQ_HD FQ_INLINE void count_elements(const void* elements, const Packets& range, const Place& place,
                                    BlockCounts<Histogram>& block, int64_t* state) {
  const typename Element<T>::Stored* const x = static_cast<const typename Element<T>::Stored*>(elements);
  Tally<T, Histogram> tally(block, state, place);
  for_elements<T>(
      elements, range, place, [&](const Packet<T>& packet, int64_t) { tally.add(packet); },
      [&](int64_t i) { tally.add_single(Element<T>::read(x[i])); });
  tally.finish(block, place);
}

}  // namespace cuda
}  // namespace onnxfq
