// The loops of the CUDA kernels, compiled for the host: every thread of a launch, one after the other, gives what the
// CPU's kernels give, to the bit. This tests index computations, packets, tables and rounding without a GPU.
#include <algorithm>
#include <cmath>

#include "../src/cuda/block_ranges_loops.h"
#include "../src/cuda/fake_quantize_loops.h"
#include "../src/cuda/group_statistics_loops.h"
#include "../src/quantizers.h"
#include "cases.h"
#include "cuda_loops.h"

namespace {

using namespace onnxfq;
using namespace onnxfq::tests;
using cuda::Place;

constexpr int64_t kBlocks = 3;
constexpr int kThreads = 8;

// Calls body(place) for all threads of one block.
template <typename Body>
void for_threads(int64_t block, const Body& body) {
  for (int thread = 0; thread < kThreads; ++thread) body(Place{block, kBlocks, thread, kThreads});
}

template <typename Body>
void for_launch(const Body& body) {
  for (int64_t block = 0; block < kBlocks; ++block) for_threads(block, body);
}

// The kernels there are: one scale with the launch; scales by a layout with an index of 32 or 64 bits.
enum class Kernel { kPerTensor, kShortIndex, kLongIndex };

template <ElementType T>
void launch_fake_quantize(const FakeQuantizeCall& call, Kernel kernel) {
  const cuda::Mapped mapped{call.x, call.y, cuda::Packets(call.x, call.y, call.layout->element_count(), T)};
  with_device_quantizers(call.grid, call.fractional_zero_point, [&](const auto& quantizers) {
    using Quantizers = std::decay_t<decltype(quantizers)>;
    if (kernel != Kernel::kPerTensor) {
      const cuda::Params params{call.scale, call.zero_point};
      const auto indexed = [&](auto index) {
        using Index = decltype(index);
        const cuda::DeviceLayout<Index> layout(*call.layout);
        for_launch([&](const Place& place) {
          cuda::map_elements<T>(mapped, place, cuda::ByLayout<Quantizers, Index>{quantizers, params, layout});
        });
      };
      kernel == Kernel::kLongIndex ? indexed(int64_t{}) : indexed(int32_t{});
    } else {
      const auto quantizer = quantizers(call.scale[0], call.zero_point ? call.zero_point[0] : 0.0f);
      for_launch([&](const Place& place) {
        cuda::map_elements<T>(mapped, place, cuda::PerTensor<std::decay_t<decltype(quantizer)>>{quantizer});
      });
    }
  });
}

void fake_quantize(const FakeQuantizeCall& call, Kernel kernel) {
  if (call.layout->element_count() == 0) return;
  switch (call.type) {
    case ElementType::kFloat32: return launch_fake_quantize<ElementType::kFloat32>(call, kernel);
    case ElementType::kFloat16: return launch_fake_quantize<ElementType::kFloat16>(call, kernel);
    case ElementType::kBfloat16: return launch_fake_quantize<ElementType::kBfloat16>(call, kernel);
  }
}

// Scales over all magnitudes, from the smallest subnormal to the largest float.
std::vector<float> scales(int64_t count) {
  std::vector<float> made(static_cast<size_t>(count));
  uint32_t state = 99;
  for (size_t i = 0; i < made.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const uint32_t bits = (state >> 1) % kInfinityBits;
    made[i] = i % 2 ? float_from_bits(bits ? bits : 1) : 0.01f + static_cast<float>(i) * 0.003f;
  }
  return made;
}

void test_fake_quantize(const Case& c, ElementType element, const char* type, const char* rounding, size_t offset) {
  for (const char* arithmetic : {"divide", "reciprocal"}) {
    FakeQuantizeSpec spec;
    require(spec.parse(type, rounding, arithmetic, 1, blocks_of(c)).empty(), type);
    Shape params;
    require(spec.blocks.scale_shape(c.x, params).empty(), "scale_shape");
    ParamLayout layout;
    require(layout.fit(c.x, params, spec.blocks).empty(), "fit");
    const std::vector<float> scale = scales(layout.param_count());
    std::vector<float> zero_point(scale.size(), spec.grid.is_float ? 0.0f : 0.5f);
    const std::vector<float> x = values(product(c.x));
    for (const float* zeros : {static_cast<const float*>(nullptr), static_cast<const float*>(zero_point.data())}) {
      Elements source(element, x, offset);
      Elements expected(element, x, 1);
      Elements aligned(element, x, offset);  // at the same element as source
      Elements elsewhere(element, x, offset + 1);
      cpu::fake_quantize(spec.call(source.data(), expected.data(), element, scale.data(), zeros, layout),
                         cpu::calling_thread());
      const std::string what = std::string("CUDA loops, ") + type + " " + rounding + " " + arithmetic;
      for (Elements* target : {&aligned, &elsewhere}) {
        const Kernel kernel = target == &aligned ? Kernel::kShortIndex : Kernel::kLongIndex;
        fake_quantize(spec.call(source.data(), target->data(), element, scale.data(), zeros, layout), kernel);
        require(target->same_as(expected), what);
      }
      if (layout.param_count() == 1) {
        fake_quantize(spec.call(source.data(), aligned.data(), element, scale.data(), zeros, layout), Kernel::kPerTensor);
        require(aligned.same_as(expected), what + " per tensor");
      }
      fake_quantize(spec.call(source.data(), source.data(), element, scale.data(), zeros, layout), Kernel::kShortIndex);
      require(source.same_as(expected), what + " in place");
    }
  }
}

// The fused division against the true one, for scales and values of all magnitudes.
void test_division() {
  uint64_t state = 88172645463325252ull;
  const RoundTo<Rounding::kHalfEven> round;
  const NamedType kinds[] = {{-128, 127, 8, false, {}}, {0, 65535, 16, false, {}}};
  for (int i = 0; i < 2000000; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const uint32_t scale_bits = static_cast<uint32_t>(state >> 32) % kInfinityBits;
    const float scale = float_from_bits(scale_bits ? scale_bits : 1);
    // Every other value within the grid, where roundings differ.
    const float x = i % 2 ? float_from_bits(static_cast<uint32_t>(state))
                          : scale * (static_cast<float>(static_cast<int32_t>(state)) / 1e7f);
    const float fraction = static_cast<float>(state % 1000) / 1000.0f;
    for (const NamedType& kind : kinds) {
      const IntegerQuantizer<RoundTo<Rounding::kHalfEven>, Divide> divided(round, scale, fraction, 1, kind.qmin,
                                                                           kind.qmax);
      const IntegerQuantizer<RoundTo<Rounding::kHalfEven>, DivideFused> fused(round, scale, fraction, 1, kind.qmin,
                                                                              kind.qmax);
      require(same_bits(divided(x), fused(x)), "fused division, " + std::to_string(x) + " / " + std::to_string(scale));
      const float zero_point = std::floor(fraction * 100.0f);
      const IntegerQuantizer<RoundTo<Rounding::kHalfEven>, Divide> whole(round, scale, zero_point, 0, kind.qmin,
                                                                         kind.qmax);
      const IntegerQuantizer<RoundTo<Rounding::kHalfEven>, DivideFused, false> fewer(round, scale, zero_point, 0,
                                                                                     kind.qmin, kind.qmax);
      require(same_bits(whole(x), fewer(x)), "zero points that are integers");
    }
    const FloatFormat format = float8e4m3fn();
    for (float limit : {format.qmax, 2 * format.qmax}) {
      const FloatQuantizer<RoundTo<Rounding::kHalfEven>, Divide> divided(round, scale, format, limit);
      const FloatQuantizer<RoundTo<Rounding::kHalfEven>, DivideFused> fused(round, scale, format, limit);
      require(same_bits(divided(x), fused(x)), "fused division to float8");
      if (limit != format.qmax) continue;
      const FloatQuantizer<RoundTo<Rounding::kHalfEven>, DivideFused, true> fewer(round, scale, format, limit);
      require(same_bits(divided(x), fewer(x)), "float8 that saturates");
    }
  }
}

// The quotients that are nearest to the middle of two floats: x with 2^s x = k (mod scale), k small, for mantissas
// of the scale all over their range.
void test_hardest_divisions() {
  int checked = 0;
  for (int64_t scale = 1 << 23; scale < 1 << 24; scale += 4801) {
    for (int shift : {24, 25}) {
      for (int64_t k = -7; k <= 7; ++k) {
        int64_t x = ((k % scale) + scale) % scale;
        bool even = true;
        for (int s = 0; s < shift && even; ++s) {
          if (x % 2 != 0) x += scale;
          even = x % 2 == 0;
          x /= 2;
        }
        if (!even) continue;
        while (x < 1 << 23 && x > 0) x += scale;
        if (x < 1 << 23 || x >= 1 << 24) continue;
        const float a = static_cast<float>(x);
        const float b = static_cast<float>(scale);
        require(same_bits(a / b, DivideFused(b)(a)), "fused division of " + std::to_string(x));
        ++checked;
      }
    }
  }
  require(checked > 10000, "hard divisions are found");
}

template <typename Index>
void test_dividers() {
  constexpr int kBits = 8 * static_cast<int>(sizeof(Index)) - 2;  // bits of the largest divisor
  uint64_t state = 1;
  for (int i = 0; i < 200000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const int64_t divisor = static_cast<int64_t>((state >> (64 - kBits)) >> (state % static_cast<uint64_t>(kBits))) + 1;
    const cuda::Divider<Index> divider(divisor);
    const int64_t n = static_cast<int64_t>((state * 2862933555777941757ull) >> (64 - kBits) >> (i % kBits));
    for (int64_t near : {n, n / divisor * divisor, n / divisor * divisor + divisor - 1}) {
      if (near < 0) continue;
      require(divider(static_cast<Index>(near)) == static_cast<Index>(near / divisor),
              "division by " + std::to_string(divisor));
    }
  }
}

template <ElementType T, bool Histogram>
void merge_statistics(const MergeStatisticsCall& call) {
  const cuda::Packets range(call.x, call.x, call.count, T);
  for (int64_t block = 0; block < kBlocks; ++block) {
    cuda::BlockCounts<Histogram> counts;
    for_threads(block, [&](const Place& place) { counts.clear(place); });
    for_threads(block, [&](const Place& place) {
      cuda::count_elements<T, Histogram>(call.x, range, place, counts, call.state);
    });
    for_threads(block, [&](const Place& place) { counts.add_table(call.state, place); });
    for_threads(block,
                [&](const Place& place) { counts.add_numbers(block == 0 ? call.count : 0, call.state, place); });
  }
}

template <ElementType T>
void test_statistics(const std::vector<float>& x, size_t offset) {
  Elements source(T, x, offset);
  for (bool histogram : {true, false}) {
    std::vector<int64_t> expected = empty_state(histogram);
    std::vector<int64_t> found = expected;
    const int64_t count = static_cast<int64_t>(x.size());
    // Twice: what is there is merged with, not overwritten.
    for (int again = 0; again < 2; ++again) {
      cpu::merge_statistics({source.data(), T, count, expected.data(), histogram}, cpu::calling_thread());
      const MergeStatisticsCall call{source.data(), T, count, found.data(), histogram};
      histogram ? merge_statistics<T, true>(call) : merge_statistics<T, false>(call);
    }
    require(found == expected, "CUDA loops, statistics of " + std::to_string(count));
  }
}

template <ElementType T, bool Histogram>
void merge_groups(const MergeStatisticsCall& call, int64_t parts) {
  const cuda::GroupLayout layout(*call.groups);
  for (int64_t block = 0; block < layout.groups() * parts; ++block) {
    const cuda::GroupPart part = cuda::GroupPart::of(block, parts, layout.places());
    int64_t* const state = call.state + part.group * call.state_size();
    cuda::BlockCounts<Histogram> counts;
    for_threads(0, [&](const Place& place) { counts.clear(place); });
    for_threads(0, [&](const Place& place) {
      cuda::count_group<T, Histogram>(call.x, layout, part, place, counts, state);
    });
    for_threads(0, [&](const Place& place) { counts.add_table(state, place); });
    for_threads(0, [&](const Place& place) { counts.add_numbers(counts.elements, state, place); });
  }
}

// Statistics by groups, one block for each and several, against the CPU.
template <ElementType T>
void test_groups(const Case& c) {
  Shape params;
  ParamLayout layout;
  require(blocks_of(c).scale_shape(c.x, params).empty(), "scale_shape");
  require(layout.fit(c.x, params, blocks_of(c)).empty(), "fit");
  // Many groups would take minutes: a table of all bins each.
  if (layout.element_count() == 0 || layout.param_count() > 100) return;
  Elements source(T, values(layout.element_count()), 1);
  for (int64_t parts : {1, 3}) {
    for (bool histogram : {true, false}) {
      std::vector<int64_t> expected;
      for (int64_t g = 0; g < layout.param_count(); ++g) {
        const std::vector<int64_t> empty = empty_state(histogram);
        expected.insert(expected.end(), empty.begin(), empty.end());
      }
      std::vector<int64_t> found = expected;
      for (int again = 0; again < 2; ++again) {
        MergeStatisticsCall call{source.data(), T, layout.element_count(), expected.data(), histogram, &layout};
        cpu::merge_statistics(call, cpu::calling_thread());
        call.state = found.data();
        histogram ? merge_groups<T, true>(call, parts) : merge_groups<T, false>(call, parts);
      }
      require(found == expected, "CUDA loops, statistics of " + std::to_string(layout.param_count()) + " groups");
    }
  }
}

template <ElementType T>
void test_ranges(const Case& c) {
  DynamicSpec spec;
  require(spec.parse("int8", "half_even", "float32", 0, blocks_of(c)).empty(), "parse");
  Shape params;
  require(spec.blocks.scale_shape(c.x, params).empty(), "scale_shape");
  ParamLayout layout;
  require(layout.fit(c.x, params, spec.blocks).empty(), "fit");
  if (layout.element_count() == 0) return;
  Elements source(T, values(layout.element_count()), 1);
  const size_t count = static_cast<size_t>(layout.param_count());
  std::vector<int32_t> low(count), high(count), magnitude(count);
  const cuda::Packets range(source.data(), source.data(), layout.element_count(), T);
  const cuda::DeviceLayout<int32_t> short_index(layout);
  const cuda::DeviceLayout<int64_t> long_index(layout);
  for_launch([&](const Place& place) {
    cuda::find_ranges<T, false>(source.data(), range, short_index, {low.data(), high.data()}, place);
    cuda::find_ranges<T, true>(source.data(), range, long_index, {nullptr, magnitude.data()}, place);
  });
  // By the definition, one element after the other.
  std::vector<int32_t> expected_low(count), expected_high(count), expected_magnitude(count);
  LayoutCursor cursor(layout, 0);
  for (int64_t i = 0; i < layout.element_count(); ++i) {
    const LayoutDim& row = cursor.row();
    const size_t p = static_cast<size_t>(cursor.param_base() + cursor.column() / row.block * row.stride);
    const float x = cuda::Element<T>::read(static_cast<const typename cuda::Element<T>::Stored*>(source.data())[i]);
    expected_low[p] = std::min(expected_low[p], finite_order_key(x));
    expected_high[p] = std::max(expected_high[p], finite_order_key(x));
    expected_magnitude[p] = std::max(expected_magnitude[p], finite_magnitude(x));
    cursor.column() + 1 < row.size ? cursor.skip(1) : cursor.next_row();
  }
  require(low == expected_low && high == expected_high && magnitude == expected_magnitude, "CUDA loops, ranges");
}

// Long and short runs of one value: usual ones, those outside of the table, zeros of both signs, NaN, infinities.
std::vector<float> runs(int64_t count) {
  const float kinds[] = {6.0f, 0.0f, -0.0f, -1e-3f, 1e-30f, -3e30f, std::nanf(""), float_from_bits(kInfinityBits), 0x1p-20f};
  std::vector<float> x;
  uint32_t state = 7;
  while (static_cast<int64_t>(x.size()) < count) {
    state = state * 1664525u + 1013904223u;
    x.insert(x.end(), 1 + (state >> 20) % 400, kinds[(state >> 8) % std::size(kinds)]);
  }
  return x;
}

template <ElementType T>
void test_type() {
  for (size_t offset : {0, 1, 3}) {
    for (const Case& c : kCases) {
      for (const char* type : kTypes) {
        for (const char* rounding : kRoundings) {
          if (product(c.x) < 10000) test_fake_quantize(c, T, type, rounding, offset);
        }
      }
      test_ranges<T>(c);
      if (offset == 0) test_groups<T>(c);
    }
    for (int64_t count : {0, 1, 3, 17, 1000, 40003}) test_statistics<T>(values(count), offset);
    test_statistics<T>(std::vector<float>(5000, 6.0f), offset);
    test_statistics<T>(std::vector<float>(5000, -0.0f), offset);
    test_statistics<T>(std::vector<float>(50, std::nanf("")), offset);
    test_statistics<T>(runs(3000), offset);
  }
}

}  // namespace

void test_cuda_loops() {
  test_dividers<int64_t>();
  test_dividers<int32_t>();
  test_division();
  test_hardest_divisions();
  test_type<ElementType::kFloat32>();
  test_type<ElementType::kFloat16>();
  test_type<ElementType::kBfloat16>();
}
