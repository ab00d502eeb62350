// Copies scales and zero points to the device.
#include "device_params.h"

namespace onnxfq {
namespace cuda {

DeviceParams::DeviceParams(const float* scale, const float* zero_point, int64_t count, Life life, void* stream)
    : life_(life), stream_(stream) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  const size_t both = zero_point ? 2 * bytes : bytes;
  void* memory = nullptr;
  check(life == Life::kLasting ? cudaMalloc(&memory, both) : cudaMallocAsync(&memory, both, as_stream(stream)),
        "allocate room for scales");
  memory_ = static_cast<float*>(memory);
  params_ = {memory_, zero_point ? memory_ + count : nullptr};
  try {
    check(cudaMemcpyAsync(memory_, scale, bytes, cudaMemcpyHostToDevice, as_stream(stream)), "copy scales");
    if (zero_point) {
      check(cudaMemcpyAsync(memory_ + count, zero_point, bytes, cudaMemcpyHostToDevice, as_stream(stream)),
            "copy zero points");
    }
    // Other streams do not wait for this one.
    if (life == Life::kLasting) check(cudaStreamSynchronize(as_stream(stream)), "copy scales");
  } catch (...) {
    release();
    throw;
  }
}

// Errors here belong to earlier work: the next call reports them.
void DeviceParams::release() {
  life_ == Life::kLasting ? cudaFree(memory_) : cudaFreeAsync(memory_, as_stream(stream_));
}

}  // namespace cuda
}  // namespace onnxfq
