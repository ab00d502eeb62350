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

void observe_range(const float* x, int64_t count, Accumulator* accumulator) {
  uint16_t bins[kBlock];
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t part = std::min(kBlock, count - done);
    summarize_block(x + done, part, &accumulator->summary, bins);
    if (Histogram* histogram = accumulator->histogram.get()) {
      count_bins(bins, part, x + std::min(done + kBlock, count - part), histogram);
      histogram->pending += part;
      if (histogram->pending >= kFlushEvery) flush(accumulator->summary, histogram, histogram->totals);
    }
  }
}

// One plane of a padded tensor: the rows of an image's last plane without their padding, gathered first.
void observe_plane(const ObserveCall& call, int64_t plane, Accumulator* accumulator) {
  const float* const x = static_cast<const float*>(call.x) + plane * call.plane;
  if ((plane + 1) % call.planes_per_image != 0) {
    observe_range(x, call.plane, accumulator);
    return;
  }
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
  if (call.valid == call.block) {
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
      for (int64_t plane = begin; plane < end; ++plane) observe_plane(call, plane, &accumulator);
      accumulators.give_back(std::move(accumulator));
    });
  }

  Statistics result;
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
