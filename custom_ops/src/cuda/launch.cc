// Answers of CUDA, as one line that says what to do.
#include "launch.h"

#include <map>
#include <mutex>
#include <utility>

namespace onnxfq {
namespace cuda {
namespace {

// "13.0" for 13000.
std::string dotted(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::string driver_remedy() {
  int driver = 0;
  int runtime = 0;
  // 0 where there is no driver; neither call needs one.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess || driver == 0) {
    return "there is no NVIDIA driver; install one or run on the CPU";
  }
  return "the driver is for CUDA " + dotted(driver) + " and these kernels are of CUDA " + dotted(runtime) +
         "; install a newer driver or run on the CPU";
}

std::string remedy(cudaError_t result) {
  switch (result) {
    case cudaErrorNoDevice: return "there is no GPU, or CUDA_VISIBLE_DEVICES hides it; run on the CPU";
    case cudaErrorInsufficientDriver:
    case cudaErrorUnsupportedPtxVersion: return driver_remedy();
    case cudaErrorMemoryAllocation: return "give a smaller batch, or run on the CPU";
    case cudaErrorNoKernelImageForDevice:
      return "this GPU is older than the library was built for; build with ONNXFQ_CUDA_ARCHITECTURES, or run on the "
             "CPU";
    default: return "`onnxfq doctor` tests the kernels on this machine";
  }
}

}  // namespace

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  // An error that does not break the device is also kept for cudaGetLastError: taken here, it cannot be blamed on
  // the next launch.
  cudaGetLastError();
  throw std::runtime_error(std::string("CUDA cannot ") + what + ": " + cudaGetErrorString(result) + "; " +
                           remedy(result));
}

unsigned resident_blocks_of(const void* kernel, int threads) {
  int device = 0;
  check(cudaGetDevice(&device), "ask for the device");
  // The answer is the same at every launch, and asking takes as long as a small launch.
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, unsigned> known;
  std::lock_guard<std::mutex> lock(mutex);
  unsigned& blocks = known[{kernel, device}];
  if (blocks == 0) {
    int processors = 0;
    int of_each = 0;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "ask for the device's size");
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, threads, 0), "ask for a kernel's size");
    blocks = static_cast<unsigned>(processors * std::max(of_each, 1));
  }
  return blocks;
}

}  // namespace cuda
}  // namespace onnxfq
