// MergeStatistics on a GPU: as many blocks as run at a time, each with counters in shared memory.
#include <algorithm>

#include "group_statistics_loops.h"
#include "launch.h"

namespace onnxfq {
namespace cuda {
namespace {

// Two blocks with their tables fill the smallest GPU, three or more the others.
constexpr int kCountingThreads = 512;
// A thread with less than this to do is not worth the clearing and merging of its block's table.
constexpr int64_t kLeastPackets = 4;
constexpr int64_t kLeastOfThread = 16;  // elements of a group

template <ElementType T, bool Histogram>
__global__ void __launch_bounds__(kCountingThreads)
    merge_statistics_kernel(const void* x, Packets range, int64_t* state) {
  __shared__ BlockCounts<Histogram> block;
  block.clear(place());
  __syncthreads();
  count_elements<T, Histogram>(x, range, place(), block, state);
  __syncthreads();
  block.add_table(state, place());
  __syncthreads();
  block.add_numbers(blockIdx.x == 0 ? range.count : 0, state, place());
}

template <ElementType T, bool Histogram>
void launch(const MergeStatisticsCall& call, void* stream) {
  const Packets range(call.x, call.x, call.count, T);
  const int64_t wanted = std::max(range.packets / kLeastPackets, range.singles()) / kCountingThreads + 1;
  const auto kernel = merge_statistics_kernel<T, Histogram>;
  const int64_t resident = resident_blocks(kernel, kCountingThreads);
  const int64_t blocks = std::max(std::min(resident, wanted), call.count / kMostOfBlock * 2 + 1);
  kernel<<<static_cast<unsigned>(blocks), kCountingThreads, 0, as_stream(stream)>>>(call.x, range, call.state);
  check(cudaGetLastError(), "launch MergeStatistics");
}

template <ElementType T, bool Histogram>
__global__ void __launch_bounds__(kCountingThreads)
    merge_groups_kernel(const void* x, const __grid_constant__ GroupLayout layout, int64_t parts, int64_t* state) {
  __shared__ BlockCounts<Histogram> block;
  const GroupPart part = GroupPart::of(blockIdx.x, parts, layout.places());
  state += part.group * (Histogram ? kStateSize : kStateHeader);
  block.clear(place());
  __syncthreads();
  count_group<T, Histogram>(x, layout, part, place(), block, state);
  __syncthreads();
  block.add_table(state, place());
  __syncthreads();
  block.add_numbers(block.elements, state, place());
}

template <ElementType T, bool Histogram>
void launch_groups(const MergeStatisticsCall& call, void* stream) {
  const GroupLayout layout(*call.groups);
  const auto kernel = merge_groups_kernel<T, Histogram>;
  // Few groups are cut into parts, so that there is work for all of the GPU; none is larger than a block may count.
  const int64_t wanted = (resident_blocks(kernel, kCountingThreads) + layout.groups() - 1) / layout.groups();
  const int64_t worth = layout.places() / (kLeastOfThread * kCountingThreads) + 1;
  const int64_t parts = std::max(std::min(wanted, worth), layout.places() / kMostOfBlock + 1);
  kernel<<<static_cast<unsigned>(layout.groups() * parts), kCountingThreads, 0, as_stream(stream)>>>(
      call.x, layout, parts, call.state);
  check(cudaGetLastError(), "launch MergeStatistics");
}

template <ElementType T>
void launch_typed(const MergeStatisticsCall& call, void* stream) {
  if (call.groups) {
    call.histogram ? launch_groups<T, true>(call, stream) : launch_groups<T, false>(call, stream);
  } else {
    call.histogram ? launch<T, true>(call, stream) : launch<T, false>(call, stream);
  }
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
