// Launching on ONNX Runtime's stream, with every answer of CUDA checked.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "packets.h"

namespace onnxfq {
namespace cuda {

constexpr int kThreads = 256;

// Throws one line that names what was tried, what CUDA says and what to do.
void check(cudaError_t result, const char* what);

inline cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

// Blocks of kThreads with a thread for each of `items`; at most what the hardware takes: loops stride over the grid.
inline unsigned blocks_for(int64_t items) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return static_cast<unsigned>(std::min(std::max<int64_t>((items + kThreads - 1) / kThreads, 1), kMost));
}

// The same with a thread for each group of packets in flight and for each single element.
inline unsigned blocks_for(const Packets& range) {
  return blocks_for(std::max((range.packets + kInFlight - 1) / kInFlight, range.singles()));
}

// Blocks of `threads` of a kernel that run at the same time on the current device, as its registers and its shared
// memory allow. kernel: a __global__ function.
unsigned resident_blocks_of(const void* kernel, int threads);

template <typename Kernel>
unsigned resident_blocks(Kernel kernel, int threads) {
  return resident_blocks_of(reinterpret_cast<const void*>(kernel), threads);
}

// Memory of the device for the work of one call: taken and given back in the order of a stream.
class StreamBuffer {
 public:
  StreamBuffer(size_t bytes, void* stream) : stream_(as_stream(stream)) {
    check(cudaMallocAsync(&data_, bytes, stream_), "allocate");
  }
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;
  // An error here is one of earlier work on the stream; the next call reports it.
  ~StreamBuffer() { cudaFreeAsync(data_, stream_); }

  void* data() const { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

#if defined(__CUDACC__)
__device__ __forceinline__ Place place() {
  return {blockIdx.x, gridDim.x, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
}
#endif

}  // namespace cuda
}  // namespace onnxfq
