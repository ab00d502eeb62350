// C functions of the CUDA part, for callers without ONNX Runtime: Python through ctypes.
//
// Conventions as in ../c_api.cc. x, y and state are memory of the current device; scales and zero points lie where
// the function says. Work is queued on `stream`, nullptr the default one; onnxfq_cuda_copy waits for it.
#include "../c_api.h"

#include <cuda_runtime.h>

#include "../dynamic_spec.h"
#include "../fake_quantize_spec.h"
#include "device_params.h"

using namespace onnxfq::c_api;
using onnxfq::cuda::check;

// How many GPUs there are. An error when there is no driver or none can be used.
FQ_EXPORT int onnxfq_cuda_device_count(int* count, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    check(cudaGetDeviceCount(count), "find a GPU");
    return "";
  });
}

// Name, compute capability (90 for 9.0) and bytes of memory of a GPU; versions as CUDA counts them (13000 for 13.0).
FQ_EXPORT int onnxfq_cuda_device(int device, char* name, size_t name_size, int* capability, int64_t* memory,
                                 int* driver_version, int* runtime_version, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "ask for a GPU");
    check(cudaDriverGetVersion(driver_version), "ask for the driver");
    check(cudaRuntimeGetVersion(runtime_version), "ask for the runtime");
    *capability = 10 * properties.major + properties.minor;
    *memory = static_cast<int64_t>(properties.totalGlobalMem);
    const size_t length = std::min(std::strlen(properties.name), name_size - 1);
    std::memcpy(name, properties.name, length);
    name[length] = '\0';
    return "";
  });
}

FQ_EXPORT int onnxfq_cuda_use_device(int device, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    check(cudaSetDevice(device), "use the GPU");
    return "";
  });
}

// Memory of the current device; onnxfq_cuda_free gives it back.
FQ_EXPORT int onnxfq_cuda_allocate(int64_t bytes, void** memory, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    check(cudaMalloc(memory, static_cast<size_t>(bytes)), "allocate");
    return "";
  });
}

FQ_EXPORT int onnxfq_cuda_free(void* memory, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    check(cudaFree(memory), "free");
    return "";
  });
}

// Between host and device either way, behind all queued work; done when it returns.
FQ_EXPORT int onnxfq_cuda_copy(void* to, const void* from, int64_t bytes, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    check(cudaDeviceSynchronize(), "finish");
    check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault), "copy");
    // A copy from the host may still be on its way, and ONNX Runtime's streams do not wait for it.
    check(cudaDeviceSynchronize(), "copy");
    return "";
  });
}

// `bytes` of each of `rows`, which begin `stride` bytes apart; else as above.
FQ_EXPORT int onnxfq_cuda_copy_rows(void* to, int64_t to_stride, const void* from, int64_t from_stride, int64_t bytes,
                                    int64_t rows, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    check(cudaDeviceSynchronize(), "finish");
    check(cudaMemcpy2D(to, static_cast<size_t>(to_stride), from, static_cast<size_t>(from_stride),
                       static_cast<size_t>(bytes), static_cast<size_t>(rows), cudaMemcpyDefault),
          "copy");
    check(cudaDeviceSynchronize(), "copy");
    return "";
  });
}

// Sets bytes of the device to 0; done when it returns.
FQ_EXPORT int onnxfq_cuda_clear(void* memory, int64_t bytes, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    check(cudaMemset(memory, 0, static_cast<size_t>(bytes)), "clear");
    check(cudaDeviceSynchronize(), "clear");
    return "";
  });
}

// onnxfq_fake_quantize on the GPU. scale and zero_point are the host's memory.
FQ_EXPORT int onnxfq_cuda_fake_quantize(const ElementsArg* elements, const float* scale, const float* zero_point,
                                        const int64_t* scale_shape, size_t scale_rank, const char* qtype,
                                        const BlocksArg* blocks, const char* rounding, const char* arithmetic,
                                        int64_t saturate, void* stream, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    onnxfq::FakeQuantizeSpec spec;
    std::string problem = spec.parse(qtype, rounding, arithmetic, saturate, blocks_of(*blocks));
    if (!problem.empty()) return problem;
    onnxfq::ParamLayout layout;
    problem = layout.fit(shape_of(*elements), {scale_shape, scale_shape + scale_rank}, spec.blocks);
    if (!problem.empty()) return problem;
    const int64_t count = layout.param_count();
    problem = spec.check(scale, zero_point, count);
    if (!problem.empty() || layout.element_count() == 0) return problem;
    const onnxfq::FakeQuantizeCall call =
        spec.call(elements->x, elements->y, element_type(*elements), scale, zero_point, layout);
    if (count == 1) {
      onnxfq::cuda::fake_quantize(call, nullptr, stream);
    } else {
      const onnxfq::cuda::DeviceParams params(scale, zero_point, count, onnxfq::cuda::DeviceParams::Life::kOneCall,
                                              stream);
      onnxfq::cuda::fake_quantize(call, &params.get(), stream);
    }
    return "";
  });
}

// onnxfq_dynamic_fake_quantize on the GPU. scale and zero_point are memory of the device.
FQ_EXPORT int onnxfq_cuda_dynamic_fake_quantize(const ElementsArg* elements, float* scale, float* zero_point,
                                                int64_t param_count, const char* qtype, const BlocksArg* blocks,
                                                const char* rounding, const char* scale_type, int64_t symmetric,
                                                float global_scale, void* stream, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    onnxfq::DynamicSpec spec;
    std::string problem = spec.parse(qtype, rounding, scale_type, symmetric, blocks_of(*blocks));
    if (!problem.empty()) return problem;
    if (global_scale != 0.0f) problem = spec.check_global_scale(global_scale);
    if (!problem.empty()) return problem;
    std::vector<int64_t> shape;
    problem = spec.blocks.scale_shape(shape_of(*elements), shape);
    if (!problem.empty()) return problem;
    onnxfq::ParamLayout layout;
    problem = layout.fit(shape_of(*elements), shape, spec.blocks);
    if (!problem.empty()) return problem;
    if (layout.param_count() != param_count) return "scale has room for another number of blocks than x has";
    onnxfq::cuda::dynamic_fake_quantize({elements->x, elements->y, element_type(*elements), scale, zero_point, &layout,
                                         spec.grid, spec.rule, global_scale},
                                        stream);
    return "";
  });
}

// Adds the statistics of x[0, count), of ElementType `type`, to state[onnxfq_state_size(histogram)].
FQ_EXPORT int onnxfq_cuda_merge_statistics(const void* x, int32_t type, int64_t count, int64_t* state, int histogram,
                                           void* stream, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    onnxfq::cuda::merge_statistics({x, static_cast<onnxfq::ElementType>(type), count, state, histogram != 0}, stream);
    return "";
  });
}
