// C functions for callers without ONNX Runtime: NumPy through ctypes.
//
// Each returns 0, or 1 with a one-line message in `error`. Arrays are C-contiguous float32.
#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "fake_quantize_spec.h"
#include "onnxfq/host_device.h"
#include "onnxfq/kernels.h"

namespace {

// Runs body, which returns an error line or "", and hands the line out. No exception leaves the library.
template <typename Body>
int guarded(char* error, size_t error_size, const Body& body) {
  std::string message;
  try {
    message = body();
  } catch (const std::exception& exception) {
    message = exception.what();
  }
  if (message.empty()) return 0;
  if (error_size > 0) {
    const size_t length = std::min(message.size(), error_size - 1);
    std::memcpy(error, message.data(), length);
    error[length] = '\0';
  }
  return 1;
}

}  // namespace

// Rounds x[x_shape] to the grid of qtype into y. zero_point may be null: 0. The two may be the same array.
FQ_EXPORT int onnxfq_fake_quantize(const float* x, float* y, const int64_t* x_shape, size_t x_rank, const float* scale,
                                   const float* zero_point, const int64_t* scale_shape, size_t scale_rank,
                                   const char* qtype, int64_t axis, int64_t block_size, const char* rounding,
                                   const char* arithmetic, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    onnxfq::FakeQuantizeSpec spec;
    std::string problem = spec.parse(qtype, rounding, arithmetic, axis, block_size);
    if (!problem.empty()) return problem;
    onnxfq::ParamLayout layout;
    problem = layout.fit({x_shape, x_shape + x_rank}, {scale_shape, scale_shape + scale_rank}, axis, block_size);
    if (!problem.empty()) return problem;
    problem = spec.check(scale, zero_point, layout.param_count());
    if (!problem.empty()) return problem;
    onnxfq::cpu::fake_quantize(spec.call(x, y, scale, zero_point, layout), onnxfq::cpu::calling_thread());
    return "";
  });
}

// Largest number of bins onnxfq_observe writes.
FQ_EXPORT int64_t onnxfq_bin_count(void) { return onnxfq::kBinCount; }

// Statistics of x[0, count): range[2] minimum and maximum, counts[4] elements, NaN, infinities, zeros;
// histogram 1: *bins_used of bins and bin_counts, which have room for onnxfq_bin_count().
FQ_EXPORT int onnxfq_observe(const float* x, int64_t count, int histogram, float* range, int64_t* counts,
                             int32_t* bins, int64_t* bin_counts, int64_t* bins_used, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    const onnxfq::Statistics statistics =
        onnxfq::cpu::observe(x, count, histogram != 0, onnxfq::cpu::calling_thread());
    statistics.summary.write(range, counts);
    std::copy(statistics.bins.begin(), statistics.bins.end(), bins);
    std::copy(statistics.bin_counts.begin(), statistics.bin_counts.end(), bin_counts);
    *bins_used = static_cast<int64_t>(statistics.bins.size());
    return "";
  });
}
