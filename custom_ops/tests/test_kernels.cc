// Runs the kernels over odd sizes, layouts and values: for the address and undefined-behaviour sanitizers.
//
// Whether numbers are right is tested from Python. Here every buffer is exactly as long as it may be, and
// what can be said without a reference is checked: results lie on the grid, and threads change nothing. The
// last line has a digest of all bits, which programs for other processors must print too.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "../src/cpu/spawned_threads.h"
#include "cases.h"
#include "cuda_loops.h"
#include "onnxfq/sizes.h"

namespace {

using namespace onnxfq;
using namespace onnxfq::tests;

// Takes in the bits of everything that is computed, with one NaN for all: every processor has the same.
uint64_t digest = 14695981039346656037u;

void take_bits(uint64_t bits) { digest = (digest ^ bits) * 1099511628211u; }

void take_floats(const std::vector<float>& floats) {
  for (float x : floats) take_bits(x != x ? 0x7fc00000u : float_bits(x));
}

void take_elements(const Elements& elements) {
  for (int64_t i = 0; i < elements.count(); ++i) take_floats({elements.at(i)});
}

// Kernels of training: a mask changes no value, and where it is 0 the derivative is an end of the grid.
void test_training(const FakeQuantizeSpec& spec, const ParamLayout& layout, const std::vector<float>& x,
                   const float* scale, const float* zeros) {
  std::vector<float> y(x.size());
  std::vector<float> plain(x.size());
  std::vector<uint8_t> inside(x.size());
  FakeQuantizeCall call = spec.call(x.data(), plain.data(), ElementType::kFloat32, scale, zeros, layout);
  cpu::fake_quantize(call, cpu::calling_thread());
  call.y = y.data();
  call.inside = inside.data();
  cpu::SpawnedThreads three{3};
  cpu::fake_quantize(call, three.threads());
  require(x.empty() || std::memcmp(y.data(), plain.data(), x.size() * sizeof(float)) == 0, "values beside a mask");
  for (uint8_t one : inside) take_bits(one);
  call.inside = nullptr;
  call.quantity = Quantity::kDerivativeByScale;
  cpu::fake_quantize(call, three.threads());
  take_floats(y);
  for (size_t i = 0; i < x.size(); ++i) {
    require(inside[i] <= 1, "mask");
    const float zero = zeros ? zeros[0] : 0.0f;  // all are equal
    const float low = (spec.grid.is_float ? -spec.grid.qmax : spec.grid.qmin) - zero;
    const float high = spec.grid.qmax - zero;
    require(inside[i] || !std::isfinite(y[i]) || y[i] == low || y[i] == high, "derivative");
  }
  cpu::mask_gradient(plain.data(), inside.data(), y.data(), static_cast<int64_t>(x.size()), three.threads());
  for (size_t i = 0; i < x.size(); ++i) require(!inside[i] || y[i] == plain[i], "masked gradient");
}

void test_fake_quantize(const Case& c, ElementType element, const char* type, const char* rounding, int saturate) {
  FakeQuantizeSpec spec;
  require(spec.parse(type, rounding, saturate ? "divide" : "reciprocal", saturate, blocks_of(c)).empty(), type);
  Shape params;
  require(spec.blocks.scale_shape(c.x, params).empty(), "scale_shape");
  ParamLayout layout;
  require(layout.fit(c.x, params, spec.blocks).empty(), "fit");
  std::vector<float> scale(static_cast<size_t>(layout.param_count()), 0.37f);
  std::vector<float> zero_point(scale.size(), spec.grid.is_float ? 0.0f : 0.5f);
  const std::vector<float> x = values(product(c.x));
  for (const float* zeros : {static_cast<const float*>(nullptr), static_cast<const float*>(zero_point.data())}) {
    require(spec.check(scale.data(), zeros, layout.param_count()).empty(), "check");
    Elements source(element, x, 1);
    Elements target(element, x, 1);
    cpu::fake_quantize(spec.call(source.data(), target.data(), element, scale.data(), zeros, layout),
                       cpu::calling_thread());
    take_elements(target);
    // In place, on two threads: the same.
    cpu::fake_quantize(spec.call(source.data(), source.data(), element, scale.data(), zeros, layout), two_threads());
    require(source.memory == target.memory, std::string("threads or in place, ") + type + " " + rounding);
    if (spec.grid.rounding == Rounding::kHalfEven) test_training(spec, layout, x, scale.data(), zeros);
  }
}

void test_dynamic(const Case& c, ElementType element, const char* type, const char* scale_type, int symmetric) {
  DynamicSpec spec;
  if (!spec.parse(type, "half_even", scale_type, symmetric, blocks_of(c)).empty()) return;  // no such kind
  Shape params;
  require(spec.blocks.scale_shape(c.x, params).empty(), "scale_shape");
  ParamLayout layout;
  require(layout.fit(c.x, params, spec.blocks).empty(), "fit");
  const size_t count = static_cast<size_t>(layout.param_count());
  std::vector<float> scale(count);
  std::vector<float> zero_point(count);
  const std::vector<float> x = values(product(c.x));
  Elements source(element, x, 1);
  Elements target(element, x, 1);
  DynamicFakeQuantizeCall call{source.data(), target.data(), element,   scale.data(), zero_point.data(),
                               &layout,       spec.grid,     spec.rule, 0.0f};
  cpu::dynamic_fake_quantize(call, cpu::calling_thread());
  for (float s : scale) require(s > 0.0f && std::isfinite(s), "scale finite and positive");
  take_elements(target);
  take_floats(scale);
  std::vector<float> other_scale(count);
  call.scale = other_scale.data();
  call.y = source.data();
  cpu::dynamic_fake_quantize(call, two_threads());
  require(source.memory == target.memory && scale == other_scale, std::string("dynamic, ") + type);
}

void test_observe(int64_t count) {
  const std::vector<float> x = values(count);
  const Statistics one = cpu::observe({x.data(), count, true}, cpu::calling_thread());
  const Statistics two = cpu::observe({x.data(), count, true}, two_threads());
  require(one.bins == two.bins && one.bin_counts == two.bin_counts, "observe");
  for (int64_t counted : one.bin_counts) take_bits(static_cast<uint64_t>(counted));
}

// Every element is in one group, and threads change nothing; groups behind the last one are left out.
void test_observe_groups(const Case& c, ElementType element) {
  const Blocks blocks = blocks_of(c);
  Shape shape;
  require(blocks.scale_shape(c.x, shape).empty(), "scale_shape");
  ParamLayout layout;
  require(layout.fit(c.x, shape, blocks).empty(), "fit");
  Elements source(element, values(product(c.x)), 1);
  const int64_t groups = layout.param_count();
  const cpu::ObserveGroupsCall call{source.data(), element, &layout, groups, true};
  const GroupStatistics one = cpu::observe_groups(call, cpu::calling_thread());
  const GroupStatistics two = cpu::observe_groups(call, two_threads());
  require(one.keys == two.keys && one.counts == two.counts, "groups: threads");
  for (int64_t counted : one.counts) take_bits(static_cast<uint64_t>(counted));
  int64_t elements = 0;
  int64_t finite = 0;
  for (const Summary& summary : one.summaries) {
    elements += summary.elements;
    finite += summary.elements - summary.nans - summary.infinities;
  }
  for (int64_t count : one.counts) finite -= count;
  require(static_cast<int64_t>(one.summaries.size()) == groups, "groups: how many");
  require(elements == product(c.x) && finite == 0, "groups: counts");
  if (groups < 2) return;
  const GroupStatistics first = cpu::observe_groups({source.data(), element, &layout, groups - 1, true}, two_threads());
  require(static_cast<int64_t>(first.summaries.size()) == groups - 1 && first.keys.size() <= one.keys.size() &&
              std::equal(first.keys.begin(), first.keys.end(), one.keys.begin()),
          "groups: the first ones");
}

// A blocked layout's padding is left out: the same statistics as of the other elements in a row.
void test_observe_padded(int64_t images, int64_t channels, int64_t plane_size, int64_t block) {
  const int64_t blocks = (channels + block - 1) / block;
  const std::vector<float> x = values(images * blocks * plane_size * block);
  std::vector<float> real;
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const int64_t channel = i / (plane_size * block) % blocks * block + i % block;
    if (channel < channels) real.push_back(x[static_cast<size_t>(i)]);
  }
  const Statistics expected =
      cpu::observe({real.data(), static_cast<int64_t>(real.size()), true}, cpu::calling_thread());
  cpu::ObserveCall call{x.data(), static_cast<int64_t>(x.size()), true, block, plane_size * block, blocks,
                        channels - (blocks - 1) * block};
  if (block <= 16 && 16 % block == 0) call.channels = channels;
  const Statistics found = cpu::observe(call, two_threads());
  require(found.bins == expected.bins && found.bin_counts == expected.bin_counts, "padded: bins");
  require(found.summary.elements == expected.summary.elements && found.summary.zeros == expected.summary.zeros &&
              found.summary.nans == expected.summary.nans && found.summary.min_key == expected.summary.min_key &&
              found.summary.max_key == expected.summary.max_key,
          "padded: summary");
  Range whole;
  for (const Range& channel : found.channels) whole.merge(channel);
  require(static_cast<int64_t>(found.channels.size()) == call.channels, "padded: channels");
  require(call.channels == 0 || (whole.min_key == found.summary.min_key && whole.max_key == found.summary.max_key),
          "padded: ranges of channels");
}

void test_broken_names() {
  NamedType type{};
  for (const char* name : {"", "int", "uint", "int1", "int17", "int8[", "int8[1", "int8[1,", "int8[-1,1", "int8[-1,1]]",
                           "int8[-999999,1]", "float", "float8", "int-8", "int8[--1,1]", "int8[2,1]", "uint8[-1,1]"}) {
    require(!parse_qtype(name, type).empty(), name);
  }
  Blocks blocks;
  blocks.shape = {1, std::numeric_limits<int64_t>::max()};
  ParamLayout layout;
  require(layout.fit({3, 4}, {3, 1}, blocks).empty(), "a block larger than x");
  require(!layout.fit({3, 4}, {3}, blocks).empty(), "a scale of another rank");
}

// Shapes that anyone may give: their products leave int64, and are reported instead of computed.
void test_hostile_shapes() {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const int64_t half = int64_t{1} << 32;
  Blocks plain;
  ParamLayout layout;
  const std::vector<Shape> hostile = {
      {half, half}, {most, 2}, {most, most, most}, {-1}, {-1, -1}, {2, -1}, {std::numeric_limits<int64_t>::min(), 2}};
  for (const Shape& shape : hostile) {
    require(!layout.fit(shape, {}, plain).empty(), "x of a hostile shape");
    require(!layout.fit({2, 2}, shape, plain).empty(), "scale of a hostile shape");
    Blocks blocks;
    blocks.shape.assign(shape.size(), 1);
    require(!layout.fit(shape, shape, blocks).empty(), "x and scale of a hostile shape");
  }
  // Without elements the rest of a shape is never counted.
  for (const Shape& shape : {Shape{0, half, half}, Shape{half, half, 0}, Shape{most, 0, most}}) {
    require(checked_product(shape) == 0, "a shape without elements");
    for (int64_t block : {int64_t{1}, half, most}) {
      Blocks blocks;
      blocks.shape.assign(3, block);
      Shape params;
      require(blocks.scale_shape(shape, params).empty(), "scale_shape");
      layout.fit(shape, params, blocks);
      layout.fit(shape, shape, plain);
    }
  }
  for (int64_t size : {int64_t{1}, half, most}) {
    Blocks blocks;
    blocks.axis = 1;
    blocks.size = size;
    for (const Shape& x : {Shape{3, 4}, Shape{0, most}, Shape{1, most}}) {
      Shape params;
      require(blocks.scale_shape(x, params).empty(), "scale_shape");
      layout.fit(x, params, blocks);
    }
    blocks.axis = size == most ? std::numeric_limits<int64_t>::min() : size;
    require(!layout.fit({3, 4}, {3, 2}, blocks).empty() || size == 1, "a hostile axis");
  }
}

}  // namespace

int main() {
  test_broken_names();
  test_hostile_shapes();
  for (const Case& c : kCases) {
    for (ElementType element : kElements) {
      for (const char* type : kTypes) {
        for (const char* rounding : kRoundings) {
          for (int saturate : {0, 1}) test_fake_quantize(c, element, type, rounding, saturate);
        }
        for (const char* scale_type : {"float32", "e8m0", "e4m3"}) {
          for (int symmetric : {0, 1}) test_dynamic(c, element, type, scale_type, symmetric);
        }
      }
      test_observe_groups(c, element);
    }
  }
  for (int64_t count : {0, 1, 15, 16, 17, 1000, 100003}) test_observe(count);
  for (int64_t channels : {1, 7, 16, 24, 40}) {
    for (int64_t plane : {0, 1, 49, 3000}) test_observe_padded(3, channels, plane, 16);
  }
  test_cuda_loops();
  std::printf("ok %016llx\n", static_cast<unsigned long long>(digest));
}
