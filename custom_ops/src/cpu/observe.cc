// Observe on the CPU: minimum, maximum, counts and histogram in one pass over memory.
//
// A block of 8 KB is read twice, the second time from the L1 cache: first by a vectorised loop (minimum,
// maximum, counts, bins), then by the histogram, which is scalar.
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "elements.h"
#include "onnxfq/kernels.h"
#include "store.h"
#include "summarize.h"
#include "threads.h"

namespace onnxfq {
namespace cpu {
namespace {

constexpr int64_t kSmallestPiece = 1 << 13;
constexpr int64_t kCacheLine = 16;  // floats
// 32-bit counters are added to 64-bit ones after this many elements, far before they could overflow.
constexpr int64_t kFlushEvery = int64_t{1} << 24;
// Neighbouring elements count in different tables: adding 1 to the counter just written has to wait for
// that write, and neighbours are often equal (zeros after ReLU, padding).
constexpr int kTables = 4;

// Counters of one thread. All zero between two uses, so nobody pays for clearing 1 MB.
struct Histogram {
  uint32_t tables[kTables][kBinCount + kZeroSlots] = {};
  int64_t totals[kBinCount] = {};
  int64_t pending = 0;     // elements in tables
  bool spilled = false;    // totals hold something
};

struct Accumulator {
  Summary summary;
  std::unique_ptr<Histogram> histogram;  // nullptr: not asked for
};

Store<Histogram>& histogram_store() {
  static Store<Histogram> store;
  return store;
}

// Counts bins[0, count) and meanwhile fetches `next`, the block after: the hardware's own prefetching stops
// while the counting keeps to the L1 cache, which on large tensors costs as much as the counting.
void count_bins(const uint16_t* bins, int64_t count, const float* next, Histogram* histogram) {
  uint32_t* const t0 = histogram->tables[0];
  uint32_t* const t1 = histogram->tables[1];
  uint32_t* const t2 = histogram->tables[2];
  uint32_t* const t3 = histogram->tables[3];
  constexpr int64_t kLine = 16;
  int64_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    FQ_PREFETCH(next + i);
    for (int64_t j = i; j < i + kLine; j += kTables) {
      ++t0[bins[j]];
      ++t1[bins[j + 1]];
      ++t2[bins[j + 2]];
      ++t3[bins[j + 3]];
    }
  }
  for (; i < count; ++i) ++t0[bins[i]];
}

// Calls visit(first, last) for every run of bins, ends included, that may have been counted in, ascending.
template <typename Visit>
void for_touched_bins(const Summary& summary, bool non_finite, const Visit& visit) {
  const bool has_non_finite = non_finite && summary.nans + summary.infinities > 0;
  const float ends[2] = {summary.maximum(), -summary.minimum()};  // the largest magnitude on each side
  const int32_t smallest = static_cast<int32_t>(bin_of(summary.min_magnitude_less_one + 1));
  for (int side = 0; side < 2; ++side) {
    const int32_t offset = side * kNegativeBin;
    if (summary.has_finite() && ends[side] > 0.0f) {
      visit(offset + smallest, offset + static_cast<int32_t>(bin_of(float_bits(ends[side]))));
    }
    if (has_non_finite) visit(offset + kNonFiniteBin, offset + kNegativeBin - 1);
  }
}

// Moves bins [first, last] of the 32-bit counters to `totals`.
FQ_CLONES void move_counts(Histogram* from, int64_t* totals, int32_t first, int32_t last) {
  uint32_t* const t0 = from->tables[0];
  uint32_t* const t1 = from->tables[1];
  uint32_t* const t2 = from->tables[2];
  uint32_t* const t3 = from->tables[3];
  FQ_IVDEP
  for (int32_t bin = first; bin <= last; ++bin) {
    totals[bin] += t0[bin] + t1[bin] + t2[bin] + t3[bin];  // below 2^32: see kFlushEvery
    t0[bin] = t1[bin] = t2[bin] = t3[bin] = 0;
  }
}

// Empties a histogram into `totals`, which may be its own.
void flush(const Summary& summary, Histogram* histogram, int64_t* totals) {
  for_touched_bins(summary, true,
                   [&](int32_t first, int32_t last) { move_counts(histogram, totals, first, last); });
  histogram->pending = 0;
  if (histogram->totals == totals) {
    histogram->spilled = true;
  } else if (histogram->spilled) {
    for_touched_bins(summary, true, [&](int32_t first, int32_t last) {
      for (int32_t bin = first; bin <= last; ++bin) {
        totals[bin] += histogram->totals[bin];
        histogram->totals[bin] = 0;
      }
    });
    histogram->spilled = false;
  }
}

// lanes: their ranges, when asked for; x begins with the first one.
void observe_range(const float* x, int64_t count, Accumulator* accumulator, Range* lanes = nullptr) {
  uint16_t bins[kBlock];
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t part = std::min(kBlock, count - done);
    summarize_block(x + done, part, &accumulator->summary, bins);
    if (lanes != nullptr) merge_lanes(x + done, part, lanes);  // from the L1 cache
    if (Histogram* histogram = accumulator->histogram.get()) {
      count_bins(bins, part, x + std::min(done + kBlock, count - part), histogram);
      histogram->pending += part;
      if (histogram->pending >= kFlushEvery) flush(accumulator->summary, histogram, histogram->totals);
    }
  }
}

// One plane: the rows of an image's last plane without their padding, gathered first.
void observe_plane(const ObserveCall& call, int64_t plane, Accumulator* accumulator, Range* lanes) {
  const int64_t begin = plane * call.plane;
  if (call.valid == call.block || (plane + 1) % call.planes_per_image != 0) {
    read_as_floats(call.type, call.x, begin, begin + call.plane, [&](const float* x, int64_t from, int64_t to) {
      observe_range(x, to - from, accumulator, lanes);
    });
    return;
  }
  const float* const x = static_cast<const float*>(call.x) + begin;
  if (lanes != nullptr) merge_lanes(x, call.plane, lanes);  // lanes of padding are left out at the end
  float gathered[kBlock];
  int64_t used = 0;
  for (int64_t row = 0; row < call.plane; row += call.block) {
    if (used + call.valid > kBlock) {
      observe_range(gathered, used, accumulator);
      used = 0;
    }
    std::copy(x + row, x + row + call.valid, gathered + used);
    used += call.valid;
  }
  observe_range(gathered, used, accumulator);
}

// The ranges of a call's channels, plane by plane: each is written by one thread.
class Channels {
 public:
  explicit Channels(const ObserveCall& call) : call_(call) {
    if (call.channels > 0 && call.count > 0) planes_.resize(static_cast<size_t>(call.count / call.plane * call.block));
  }

  bool wanted() const { return !planes_.empty(); }

  void set(int64_t plane, const Range* lanes) {
    Range* const of_plane = planes_.data() + plane * call_.block;
    for (int64_t k = 0; k < kLanes; ++k) of_plane[k % call_.block].merge(lanes[k]);
  }

  std::vector<Range> merged() const {
    std::vector<Range> result(static_cast<size_t>(call_.channels));
    const size_t image = static_cast<size_t>(call_.planes_per_image * call_.block);
    for (size_t i = 0; i < planes_.size(); ++i) {
      const size_t channel = i % image;
      if (channel < result.size()) result[channel].merge(planes_[i]);
    }
    return result;
  }

 private:
  const ObserveCall& call_;
  std::vector<Range> planes_;
};

// The accumulators of one call: as many as threads worked at the same time.
class Accumulators {
 public:
  explicit Accumulators(bool histogram) : histogram_(histogram) {}

  Accumulator take() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        Accumulator accumulator = std::move(idle_.back());
        idle_.pop_back();
        return accumulator;
      }
    }
    Accumulator fresh;
    if (histogram_) fresh.histogram = histogram_store().take();
    return fresh;
  }

  void give_back(Accumulator accumulator) {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(accumulator));
  }

  std::vector<Accumulator>& all() { return idle_; }

 private:
  bool histogram_;
  std::mutex mutex_;
  std::vector<Accumulator> idle_;
};

}  // namespace

Statistics observe(const ObserveCall& call, const Threads& threads) {
  Accumulators accumulators(call.histogram);
  Channels channels(call);
  if (call.valid == call.block && !channels.wanted()) {
    for_pieces(threads, call.count, kSmallestPiece, kCacheLine, [&](int64_t begin, int64_t end) {
      Accumulator accumulator = accumulators.take();
      read_as_floats(call.type, call.x, begin, end, [&](const float* x, int64_t from, int64_t to) {
        observe_range(x, to - from, &accumulator);
      });
      accumulators.give_back(std::move(accumulator));
    });
  } else if (call.count > 0) {
    const int64_t smallest = (kSmallestPiece + call.plane - 1) / call.plane;
    for_pieces(threads, call.count / call.plane, smallest, 1, [&](int64_t begin, int64_t end) {
      Accumulator accumulator = accumulators.take();
      for (int64_t plane = begin; plane < end; ++plane) {
        Range lanes[kLanes];
        observe_plane(call, plane, &accumulator, channels.wanted() ? lanes : nullptr);
        if (channels.wanted()) channels.set(plane, lanes);
      }
      accumulators.give_back(std::move(accumulator));
    });
  }

  Statistics result;
  if (call.channels > 0) result.channels = channels.merged();
  for (const Accumulator& accumulator : accumulators.all()) result.summary.merge(accumulator.summary);
  if (!call.histogram || accumulators.all().empty()) return result;

  Histogram& sum = *accumulators.all().front().histogram;
  for (Accumulator& accumulator : accumulators.all()) {
    flush(accumulator.summary, accumulator.histogram.get(), sum.totals);
  }
  // Zeros share their bin with the smallest subnormals: visited first even if nothing else touched it.
  sum.totals[0] += result.summary.zeros;
  const auto collect = [&](int32_t first, int32_t last) {
    for (int32_t bin = first; bin <= last; ++bin) {
      if (sum.totals[bin] == 0) continue;
      if ((bin & (kNegativeBin - 1)) < kNonFiniteBin) {
        result.bins.push_back(bin);
        result.bin_counts.push_back(sum.totals[bin]);
      }
      sum.totals[bin] = 0;
    }
  };
  collect(0, 0);
  for_touched_bins(result.summary, true, collect);
  sum.spilled = false;
  for (Accumulator& accumulator : accumulators.all()) histogram_store().give_back(std::move(accumulator.histogram));
  return result;
}

}  // namespace cpu
}  // namespace onnxfq
