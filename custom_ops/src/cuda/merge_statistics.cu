// MergeStatistics on a GPU: as many blocks as run at a time, each with counters in shared memory.
#include <algorithm>

#include "launch.h"
#include "merge_statistics_loops.h"

namespace onnxfq {
namespace cuda {
namespace {

// Two blocks with their tables fill the smallest GPU, three or more the others.
constexpr int kCountingThreads = 512;
// A thread with less than this to do is not worth the clearing and merging of its block's table.
constexpr int64_t kLeastPackets = 4;

template <ElementType T, bool Histogram>
__global__ void __launch_bounds__(kCountingThreads)
    merge_statistics_kernel(const void* x, Packets range, int64_t* state) {
  __shared__ BlockCounts<Histogram> block;
  block.clear(place());
  __syncthreads();
  count_elements<T, Histogram>(x, range, place(), block, state);
  __syncthreads();
  block.merge_into(state, place());
}

template <ElementType T, bool Histogram>
void launch(const MergeStatisticsCall& call, void* stream) {
  const Packets range(call.x, call.x, call.count, T);
  const int64_t wanted = std::max(range.packets / kLeastPackets, range.singles()) / kCountingThreads + 1;
  const int64_t resident = resident_blocks() * kThreads / kCountingThreads;
  const int64_t blocks = std::max(std::min(resident, wanted), call.count / kMostOfBlock * 2 + 1);
  merge_statistics_kernel<T, Histogram>
      <<<static_cast<unsigned>(blocks), kCountingThreads, 0, as_stream(stream)>>>(call.x, range, call.state);
  check(cudaGetLastError(), "launch MergeStatistics");
}

template <ElementType T>
void launch_typed(const MergeStatisticsCall& call, void* stream) {
  call.histogram ? launch<T, true>(call, stream) : launch<T, false>(call, stream);
}

}  // namespace

void merge_statistics(const MergeStatisticsCall& call, void* stream) {
  if (call.count == 0) return;
  switch (call.type) {
    case ElementType::kFloat32: return launch_typed<ElementType::kFloat32>(call, stream);
    case ElementType::kFloat16: return launch_typed<ElementType::kFloat16>(call, stream);
    case ElementType::kBfloat16: return launch_typed<ElementType::kBfloat16>(call, stream);
  }
}

}  // namespace cuda
}  // namespace onnxfq
