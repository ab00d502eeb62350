// MergeStatistics on the CPU: Observe, then an addition to what was there.
#include <algorithm>

#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cpu {

void merge_statistics(const MergeStatisticsCall& call, const Threads& threads) {
  ObserveCall observed{call.x, call.count, call.histogram};
  observed.type = call.type;
  const Statistics found = observe(observed, threads);
  int64_t* const state = call.state;
  state[kStateMinKey] = std::min<int64_t>(state[kStateMinKey], found.summary.min_key);
  state[kStateMaxKey] = std::max<int64_t>(state[kStateMaxKey], found.summary.max_key);
  state[kStateElements] += found.summary.elements;
  state[kStateNans] += found.summary.nans;
  state[kStateInfinities] += found.summary.infinities;
  state[kStateZeros] += found.summary.zeros;
  for (size_t i = 0; i < found.bins.size(); ++i) state[kStateHeader + found.bins[i]] += found.bin_counts[i];
}

}  // namespace cpu
}  // namespace onnxfq
