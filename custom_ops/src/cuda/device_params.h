// Scales and zero points on the device.
#pragma once

#include "launch.h"
#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cuda {

// Copies of scale[count] and zero_point[count], which may be nullptr.
class DeviceParams {
 public:
  // How long they serve: one call on `stream`, or calls on any stream until they are destroyed.
  enum class Life { kOneCall, kLasting };

  DeviceParams(const float* scale, const float* zero_point, int64_t count, Life life, void* stream);
  DeviceParams(const DeviceParams&) = delete;
  DeviceParams& operator=(const DeviceParams&) = delete;
  ~DeviceParams() { release(); }

  const Params& get() const { return params_; }

 private:
  void release();

  Life life_;
  void* stream_;
  float* memory_ = nullptr;
  Params params_{};
};

}  // namespace cuda
}  // namespace onnxfq
