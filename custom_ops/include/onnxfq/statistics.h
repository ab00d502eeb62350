// Statistics of a tensor from one pass: exact, and merged by integer operations only.
//
// The histogram's bin is the leading bits of the float itself,
//
//     s eeeeeeee mmmmmm mmmmmmmmmmmmmmmmm
//     |---- 15 bits --| 17 bits dropped
//
// so it needs no range beforehand and merging two histograms is adding their counts.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "onnxfq/numeric_core.h"

namespace onnxfq {

constexpr int kDroppedBits = 17;  // the one constant of the split: 32 - sign - 8 exponent - 6 mantissa bits
constexpr int32_t kBinCount = int32_t{1} << (32 - kDroppedBits);

constexpr uint32_t kMagnitudeMask = 0x7fffffffu;

// The first bin of infinities and NaN, of either sign: these are counted, but not in the histogram.
constexpr int32_t kNonFiniteBin = static_cast<int32_t>(kInfinityBits >> kDroppedBits);
constexpr int32_t kNegativeBin = kBinCount / 2;

FQ_HD FQ_INLINE uint32_t bin_of(uint32_t bits) { return bits >> kDroppedBits; }

// The ends of the finite values as order keys; +inf, -inf when there is none.
struct Range {
  int32_t min_key = std::numeric_limits<int32_t>::max();
  int32_t max_key = std::numeric_limits<int32_t>::min();

  bool has_finite() const { return min_key <= max_key; }

  float minimum() const {
    return has_finite() ? float_from_order_key(min_key) : std::numeric_limits<float>::infinity();
  }
  float maximum() const {
    return has_finite() ? float_from_order_key(max_key) : -std::numeric_limits<float>::infinity();
  }

  // ends[2]: minimum, maximum.
  void write(float* ends) const {
    ends[0] = minimum();
    ends[1] = maximum();
  }

  void merge(const Range& other) {
    min_key = other.min_key < min_key ? other.min_key : min_key;
    max_key = other.max_key > max_key ? other.max_key : max_key;
  }
};

// Range and counts.
struct Summary : Range {
  // Smallest magnitude bits of a value that is not 0, less one: where a histogram begins.
  uint32_t min_magnitude_less_one = std::numeric_limits<uint32_t>::max();
  int64_t elements = 0;
  int64_t nans = 0;
  int64_t infinities = 0;
  int64_t zeros = 0;

  // range[2]: minimum, maximum. counts[4]: elements, NaN, infinities, zeros.
  void write(float* range, int64_t* counts) const {
    Range::write(range);
    counts[0] = elements;
    counts[1] = nans;
    counts[2] = infinities;
    counts[3] = zeros;
  }

  void merge(const Summary& other) {
    Range::merge(other);
    if (other.min_magnitude_less_one < min_magnitude_less_one) {
      min_magnitude_less_one = other.min_magnitude_less_one;
    }
    elements += other.elements;
    nans += other.nans;
    infinities += other.infinities;
    zeros += other.zeros;
  }
};

// Statistics as one array of int64, which merges in place: these numbers, then, when there is a histogram, the
// counts of all kBinCount bins. Keys are order keys.
constexpr int kStateMinKey = 0, kStateMaxKey = 1, kStateElements = 2, kStateNans = 3, kStateInfinities = 4,
              kStateZeros = 5;
constexpr int kStateHeader = 8;  // two are free
constexpr int64_t kStateSize = kStateHeader + kBinCount;

// The same of several groups of elements, channels or blocks, one after the other. A key is the number of the group
// times kBinCount plus the bin; keys ascend.
struct GroupStatistics {
  std::vector<Summary> summaries;
  std::vector<int32_t> keys;
  std::vector<int64_t> counts;
};

// Groups whose keys fit into 32 bits.
constexpr int64_t kMostGroups = (int64_t{1} << 31) / kBinCount;

// A summary and its histogram without the empty bins, bins ascending.
struct Statistics {
  Summary summary;
  std::vector<int32_t> bins;
  std::vector<int64_t> bin_counts;
  std::vector<Range> channels;  // empty unless requested
};

}  // namespace onnxfq
