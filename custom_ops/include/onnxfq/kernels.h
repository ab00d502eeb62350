// Interface of a backend: plain pointers and int64 sizes, no ONNX Runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "onnxfq/dynamic_scales.h"
#include "onnxfq/float_formats.h"
#include "onnxfq/half_floats.h"
#include "onnxfq/numeric_core.h"
#include "onnxfq/param_layout.h"
#include "onnxfq/statistics.h"

namespace onnxfq {

// The types x and y may have. Arithmetic is float32 for all of them.
enum class ElementType { kFloat32, kFloat16, kBfloat16 };

constexpr size_t element_size(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

// The numbers x is rounded to, and how.
struct Grid {
  float qmin;
  float qmax;
  bool is_float;
  FloatFormat format;  // for is_float
  float limit;         // for is_float, of round_to_float_grid
  Rounding rounding;
  Arithmetic arithmetic;
};

// Values that a call writes to y: the fake-quantized value, or its derivative by the scale with the rounding error held
// still, as LSQ has it: (value - x) / scale inside the grid, the end of the grid in steps from the zero point outside.
enum class Quantity { kValue, kDerivativeByScale };

// A call of FakeQuantize. y has as many elements as x and may be x itself, no other overlap.
struct FakeQuantizeCall {
  const void* x;
  void* y;
  ElementType type;
  const float* scale;
  const float* zero_point;  // one for each scale; nullptr: all 0
  const ParamLayout* layout;
  Grid grid;
  bool fractional_zero_point;  // some zero point is not an integer
  // For training, on the CPU and with Rounding::kHalfEven only.
  Quantity quantity = Quantity::kValue;
  uint8_t* inside = nullptr;  // with kValue: receives for each element whether it is inside the grid
};

// A call of DynamicFakeQuantize. scale and zero_point have room for layout->param_count().
struct DynamicFakeQuantizeCall {
  const void* x;
  void* y;
  ElementType type;
  float* scale;
  float* zero_point;  // may be nullptr when rule.symmetric
  const ParamLayout* layout;
  Grid grid;
  ScaleRule rule;
  float global_scale;  // for ScaleType::kE4m3; 0: from the largest magnitude of x
};

// A call of MergeStatistics: the statistics of x[0, count) are added to state, see kStateSize.
struct MergeStatisticsCall {
  const void* x;
  ElementType type;
  int64_t count;
  int64_t* state;
  bool histogram;  // false: state has no bins
  // Not nullptr: each element counts in the group whose scale it would use, of which there are at most kMostGroups.
  // Each has its own state, one behind the other.
  const ParamLayout* groups = nullptr;

  int64_t state_size() const { return histogram ? kStateSize : kStateHeader; }
};

namespace cpu {

// Runs task(data, 0) ... task(data, count - 1), in any order, on as many threads as it has.
struct Threads {
  void (*run)(void* pool, void (*task)(void* data, size_t index), size_t count, void* data);
  void* pool;
};

// The calling thread alone.
Threads calling_thread();

void fake_quantize(const FakeQuantizeCall& call, const Threads& threads);

// y = gradient where inside is 1, gradient * 0 where it is 0, for count elements. y may be gradient.
void mask_gradient(const float* gradient, const uint8_t* inside, float* y, int64_t count, const Threads& threads);

void dynamic_fake_quantize(const DynamicFakeQuantizeCall& call, const Threads& threads);

// Input of Observe: x[0, count), all of it, or, with block > 1, planes of rows of `block` elements. In
// the last plane of each image the rows hold `valid` elements and then padding.
struct ObserveCall {
  const void* x;
  int64_t count;
  bool histogram;  // false: no bins
  int64_t block = 1;
  int64_t plane = 1;  // elements, a multiple of block
  int64_t planes_per_image = 1;
  int64_t valid = 1;
  ElementType type = ElementType::kFloat32;  // type of x; with block > 1 float32 only
  // Not 0: the number of channels whose ranges are computed. A plane holds `block` of them, element by element
  // in turn, the next plane the next ones, and an image all; block is 1 or a power of two up to 16.
  int64_t channels = 0;
};

// The same for any number of threads.
Statistics observe(const ObserveCall& call, const Threads& threads);

// Input of Observe by groups: each element counts in the group whose scale it would use.
struct ObserveGroupsCall {
  const void* x;
  ElementType type;
  const ParamLayout* layout;
  int64_t groups;  // that many of the layout's; what comes behind them is padding
  bool histogram;
};

// One set of statistics for each group, the same for any number of threads. At most kMostGroups.
GroupStatistics observe_groups(const ObserveGroupsCall& call, const Threads& threads);

void merge_statistics(const MergeStatisticsCall& call, const Threads& threads);

}  // namespace cpu

// The same on a GPU, for a library that was built with it. x, y and state are memory of the current device, and
// stream is one of its streams: work is queued there, and nothing waits for it. An error of CUDA is a
// std::runtime_error of one line.
namespace cuda {

// Copies on the device of a call's scales and zero points; zero_point may be nullptr: all 0.
struct Params {
  const float* scale;
  const float* zero_point;
};

// params: nullptr where layout->param_count() is 1: then scale and zero point go along with the launch.
void fake_quantize(const FakeQuantizeCall& call, const Params* params, void* stream);

// The scales and zero points of the call, where they are wanted, are memory of the device too. Without room for
// them they are kept to itself.
void dynamic_fake_quantize(const DynamicFakeQuantizeCall& call, void* stream);

void merge_statistics(const MergeStatisticsCall& call, void* stream);

}  // namespace cuda
}  // namespace onnxfq
