// MergeStatistics on the CPU: Observe, then an addition to what was there.
#include <algorithm>

#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cpu {
namespace {

void add(const Summary& found, int64_t* state) {
  state[kStateMinKey] = std::min<int64_t>(state[kStateMinKey], found.min_key);
  state[kStateMaxKey] = std::max<int64_t>(state[kStateMaxKey], found.max_key);
  state[kStateElements] += found.elements;
  state[kStateNans] += found.nans;
  state[kStateInfinities] += found.infinities;
  state[kStateZeros] += found.zeros;
}

void merge_groups(const MergeStatisticsCall& call, const Threads& threads) {
  const GroupStatistics found =
      observe_groups({call.x, call.type, call.groups, call.groups->param_count(), call.histogram}, threads);
  int64_t* state = call.state;
  for (const Summary& summary : found.summaries) {
    add(summary, state);
    state += call.state_size();
  }
  for (size_t i = 0; i < found.keys.size(); ++i) {
    const int64_t group = found.keys[i] / kBinCount;
    call.state[group * kStateSize + kStateHeader + found.keys[i] % kBinCount] += found.counts[i];
  }
}

}  // namespace

void merge_statistics(const MergeStatisticsCall& call, const Threads& threads) {
  if (call.groups) return merge_groups(call, threads);
  ObserveCall observed{call.x, call.count, call.histogram};
  observed.type = call.type;
  const Statistics found = observe(observed, threads);
  add(found.summary, call.state);
  for (size_t i = 0; i < found.bins.size(); ++i) call.state[kStateHeader + found.bins[i]] += found.bin_counts[i];
}

}  // namespace cpu
}  // namespace onnxfq
