// C functions for callers without ONNX Runtime: NumPy through ctypes.
//
// Each returns 0, or 1 with a one-line message in `error`. Arrays are C-contiguous, float32 unless said
// otherwise. A struct holds what is too much for a list of arguments; runtime/kernels.py mirrors it.
#include "c_api.h"

#include "cpu/spawned_threads.h"
#include "dynamic_spec.h"
#include "fake_quantize_spec.h"

using namespace onnxfq::c_api;

// Rounds x to the grid of qtype into y. zero_point may be null: 0. y may be x.
FQ_EXPORT int onnxfq_fake_quantize(const ElementsArg* elements, const float* scale, const float* zero_point,
                                   const int64_t* scale_shape, size_t scale_rank, const char* qtype,
                                   const BlocksArg* blocks, const char* rounding, const char* arithmetic,
                                   int64_t saturate, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    onnxfq::FakeQuantizeSpec spec;
    std::string problem = spec.parse(qtype, rounding, arithmetic, saturate, blocks_of(*blocks));
    if (!problem.empty()) return problem;
    onnxfq::ParamLayout layout;
    problem = layout.fit(shape_of(*elements), {scale_shape, scale_shape + scale_rank}, spec.blocks);
    if (!problem.empty()) return problem;
    problem = spec.check(scale, zero_point, layout.param_count());
    if (!problem.empty()) return problem;
    onnxfq::cpu::fake_quantize(
        spec.call(elements->x, elements->y, element_type(*elements), scale, zero_point, layout),
        onnxfq::cpu::calling_thread());
    return "";
  });
}

// For training: onnxfq_fake_quantize with halves to even, on `threads` threads, of scales and zero points that are
// not checked. derivative 1: y receives the derivative by the scale, see Quantity. inside, null or as long as x: 1
// where x is inside the grid, else 0.
FQ_EXPORT int onnxfq_fake_quantize_step(const ElementsArg* elements, uint8_t* inside, int32_t derivative,
                                        int32_t threads, const float* scale, const float* zero_point,
                                        const int64_t* scale_shape, size_t scale_rank, const char* qtype,
                                        const BlocksArg* blocks, const char* arithmetic, int64_t saturate, char* error,
                                        size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    onnxfq::FakeQuantizeSpec spec;
    std::string problem = spec.parse(qtype, "half_even", arithmetic, saturate, blocks_of(*blocks));
    if (!problem.empty()) return problem;
    onnxfq::ParamLayout layout;
    problem = layout.fit(shape_of(*elements), {scale_shape, scale_shape + scale_rank}, spec.blocks);
    if (!problem.empty()) return problem;
    onnxfq::FakeQuantizeCall call =
        spec.call(elements->x, elements->y, element_type(*elements), scale, zero_point, layout);
    call.inside = inside;
    if (derivative) call.quantity = onnxfq::Quantity::kDerivativeByScale;
    onnxfq::cpu::SpawnedThreads spawned{threads};
    onnxfq::cpu::fake_quantize(call, spawned.threads());
    return "";
  });
}

// For training: y = gradient where inside is 1, gradient times 0 elsewhere.
FQ_EXPORT int onnxfq_mask_gradient(const float* gradient, const uint8_t* inside, float* y, int64_t count,
                                   int32_t threads, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    onnxfq::cpu::SpawnedThreads spawned{threads};
    onnxfq::cpu::mask_gradient(gradient, inside, y, count, spawned.threads());
    return "";
  });
}

// Rounds x to the grid of qtype with scales made from it. scale, zero_point [param_count] receive them.
// global_scale 0: none given.
FQ_EXPORT int onnxfq_dynamic_fake_quantize(const ElementsArg* elements, float* scale, float* zero_point,
                                           int64_t param_count, const char* qtype, const BlocksArg* blocks,
                                           const char* rounding, const char* scale_type, int64_t symmetric,
                                           float global_scale, char* error, size_t error_size) {
  return guarded(error, error_size, [&]() -> std::string {
    onnxfq::DynamicSpec spec;
    std::string problem = spec.parse(qtype, rounding, scale_type, symmetric, blocks_of(*blocks));
    if (problem.empty() && global_scale != 0.0f) problem = spec.check_global_scale(global_scale);
    std::vector<int64_t> shape;
    if (problem.empty()) problem = spec.blocks.scale_shape(shape_of(*elements), shape);
    onnxfq::ParamLayout layout;
    if (problem.empty()) problem = layout.fit(shape_of(*elements), shape, spec.blocks);
    if (!problem.empty()) return problem;
    if (layout.param_count() != param_count) {
      return "room for " + std::to_string(param_count) + " scales, " + std::to_string(layout.param_count()) +
             " are needed";
    }
    onnxfq::cpu::dynamic_fake_quantize({elements->x, elements->y, element_type(*elements), scale, zero_point, &layout,
                                        spec.grid, spec.rule, global_scale},
                                       onnxfq::cpu::calling_thread());
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
        onnxfq::cpu::observe({x, count, histogram != 0}, onnxfq::cpu::calling_thread());
    statistics.summary.write(range, counts);
    std::copy(statistics.bins.begin(), statistics.bins.end(), bins);
    std::copy(statistics.bin_counts.begin(), statistics.bin_counts.end(), bin_counts);
    *bins_used = static_cast<int64_t>(statistics.bins.size());
    return "";
  });
}

// Elements of a statistics state, see onnxfq_cuda_merge_statistics, with and without a histogram.
FQ_EXPORT int64_t onnxfq_state_size(int histogram) { return histogram ? onnxfq::kStateSize : onnxfq::kStateHeader; }

// 1 when the library holds the CUDA kernels and the functions of cuda/c_api.cc, else 0.
FQ_EXPORT int onnxfq_cuda_built(void) {
#if defined(ONNXFQ_WITH_CUDA)
  return 1;
#else
  return 0;
#endif
}
