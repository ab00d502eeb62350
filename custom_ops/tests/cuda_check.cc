// The CUDA kernels on a GPU. `cuda_check formats`, `statistics`, `floats` and `large` compare them with the CPU's to the
// bit: every format, layout and mode; statistics, by groups too; every float there is; more than 2^32 elements. `small`
// does the first two on small tensors for compute-sanitizer. `speed FILE` measures against a copy on the device.
//
// Without a GPU it says so and returns 77.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include "../src/cuda/device_params.h"
#include "cases.h"

namespace {

using namespace onnxfq;
using namespace onnxfq::tests;
using cuda::check;

constexpr int kNoGpu = 77;
// Elements from which on threads are started for the CPU's side.
constexpr int64_t kWorthThreads = 1000000;

// All cores, for the CPU's side of the comparison.
cpu::Threads all_cores() {
  return {[](void*, void (*task)(void*, size_t), size_t count, void* data) {
            std::atomic<size_t> next{0};
            std::vector<std::thread> threads;
            for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
              threads.emplace_back([&] {
                for (size_t i = next++; i < count; i = next++) task(data, i);
              });
            }
            for (std::thread& thread : threads) thread.join();
          },
          nullptr};
}

// No more threads than the tensor is worth starting.
cpu::Threads threads_for(int64_t count) { return count < kWorthThreads ? cpu::calling_thread() : all_cores(); }

// Bytes on the device.
class Device {
 public:
  explicit Device(size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, std::max<size_t>(bytes, 16)), "allocate"); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { cudaFree(data_); }

  char* at(size_t offset) const { return static_cast<char*>(data_) + offset; }
  size_t bytes() const { return bytes_; }

  void fill(const void* from, size_t offset, size_t bytes) {
    if (bytes == 0) return;  // nothing has no address
    check(cudaMemcpy(at(offset), from, bytes, cudaMemcpyHostToDevice), "copy");
  }
  void read(void* to, size_t offset, size_t bytes) const {
    check(cudaDeviceSynchronize(), "run a kernel");
    if (bytes > 0) check(cudaMemcpy(to, at(offset), bytes, cudaMemcpyDeviceToHost), "copy");
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

struct Random {
  uint64_t state = 88172645463325252ull;

  uint64_t operator()() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
};

// Elements of a type on the host. Random bits, every third a plain number.
std::vector<unsigned char> random_elements(ElementType type, int64_t count, Random& random) {
  std::vector<unsigned char> made(static_cast<size_t>(count) * element_size(type));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const uint64_t bits = random();
    float x = static_cast<float>(static_cast<int32_t>(bits)) / 1e9f;
    if (i % 3) x = float_from_bits(static_cast<uint32_t>(bits));
    const uint16_t half = i % 3 ? static_cast<uint16_t>(bits)
                          : type == ElementType::kFloat16 ? float16_from_float(x)
                                                          : bfloat16_from_float(x);
    type == ElementType::kFloat32 ? std::memcpy(&made[4 * i], &x, 4) : std::memcpy(&made[2 * i], &half, 2);
  }
  return made;
}

bool is_nan(ElementType type, const unsigned char* at) {
  uint32_t word = 0;
  std::memcpy(&word, at, element_size(type));
  if (type == ElementType::kFloat32) return (word & kMagnitudeMask) > kInfinityBits;
  return (word & 0x7fffu) > (type == ElementType::kFloat16 ? 0x7c00u : 0x7f80u);
}

// The first element that differs, or -1. NaN is NaN.
int64_t first_difference(ElementType type, const unsigned char* a, const unsigned char* b, int64_t count) {
  const size_t size = element_size(type);
  if (std::memcmp(a, b, static_cast<size_t>(count) * size) == 0) return -1;
  for (int64_t i = 0; i < count; ++i) {
    const unsigned char* const left = a + static_cast<size_t>(i) * size;
    const unsigned char* const right = b + static_cast<size_t>(i) * size;
    if (std::memcmp(left, right, size) != 0 && !(is_nan(type, left) && is_nan(type, right))) return i;
  }
  return -1;
}

int64_t values_compared = 0;

void require_same(ElementType type, const std::vector<unsigned char>& expected, const std::vector<unsigned char>& found,
                  const std::string& what) {
  const int64_t count = static_cast<int64_t>(expected.size() / element_size(type));
  const int64_t at = first_difference(type, expected.data(), found.data(), count);
  if (at >= 0) {
    uint32_t left = 0;
    uint32_t right = 0;
    std::memcpy(&left, &expected[static_cast<size_t>(at) * element_size(type)], element_size(type));
    std::memcpy(&right, &found[static_cast<size_t>(at) * element_size(type)], element_size(type));
    std::fprintf(stderr, "failed: %s: element %lld is %08x on the CPU and %08x on the GPU\n", what.c_str(),
                 static_cast<long long>(at), left, right);
    std::exit(1);
  }
  values_compared += count;
}

struct Kind {
  const char* qtype;
  const char* rounding;
  const char* arithmetic;
  int64_t saturate;
};

std::string name_of(const Kind& kind, ElementType type) {
  return std::string(kind.qtype) + " " + kind.rounding + " " + kind.arithmetic + " type " +
         std::to_string(static_cast<int>(type));
}

// Scales of one tensor: usual ones, or of all magnitudes.
std::vector<float> make_scales(int64_t count, bool usual, const Kind& kind, Random& random) {
  std::vector<float> made(static_cast<size_t>(count));
  for (float& scale : made) {
    const uint64_t bits = random();
    scale = 0.001f + static_cast<float>(bits % 100000) * 1e-5f;
    const uint32_t any = static_cast<uint32_t>(bits >> 20) % kInfinityBits;
    if (!usual && any) scale = float_from_bits(any);
    if (std::string(kind.arithmetic) == "reciprocal" && 1.0f / scale > kLargestFloat) scale = 1.0f;
  }
  return made;
}

// Runs one call on both and compares; x and y begin some elements off an aligned address. zero_points: 0 none, 1
// integers, 2 fractions. usual: scales near 1, else of all magnitudes.
void compare_fake_quantize(const Case& c, ElementType type, const Kind& kind, int zero_points, bool usual,
                           Random& random) {
  FakeQuantizeSpec spec;
  require(spec.parse(kind.qtype, kind.rounding, kind.arithmetic, kind.saturate, blocks_of(c)).empty(), kind.qtype);
  Shape params;
  require(spec.blocks.scale_shape(c.x, params).empty(), "scale_shape");
  ParamLayout layout;
  require(layout.fit(c.x, params, spec.blocks).empty(), "fit");
  const int64_t count = layout.element_count();
  const std::vector<float> scale = make_scales(layout.param_count(), usual, kind, random);
  std::vector<float> zero_point(scale.size());
  for (float& z : zero_point) {
    if (spec.grid.is_float || zero_points == 0) continue;
    const float share = static_cast<float>(random() % 1000) / 999.0f;
    z = clamp(spec.grid.qmin + share * (spec.grid.qmax - spec.grid.qmin), spec.grid.qmin, spec.grid.qmax);
    if (zero_points == 1) z = std::floor(z);
  }
  const float* const zeros = zero_points ? zero_point.data() : nullptr;
  require(spec.check(scale.data(), zeros, layout.param_count()).empty(), "check");
  const std::vector<unsigned char> x = random_elements(type, count, random);
  std::vector<unsigned char> expected(x.size());
  std::vector<unsigned char> found(x.size());
  cpu::fake_quantize(spec.call(x.data(), expected.data(), type, scale.data(), zeros, layout), threads_for(count));

  const size_t size = element_size(type);
  const size_t source_offset = random() % 4 * size;
  const size_t target_offset = random() % 2 ? source_offset : random() % 4 * size;
  Device source(x.size() + 64);
  Device target(x.size() + 64);
  source.fill(x.data(), source_offset, x.size());
  const FakeQuantizeCall call =
      spec.call(source.at(source_offset), target.at(target_offset), type, scale.data(), zeros, layout);
  const std::string what = "FakeQuantize " + name_of(kind, type);
  if (layout.param_count() == 1) {
    cuda::fake_quantize(call, nullptr, nullptr);
    target.read(found.data(), target_offset, found.size());
    require_same(type, expected, found, what + " per tensor");
  } else if (layout.param_count() > 0) {
    const cuda::DeviceParams device(scale.data(), zeros, layout.param_count(), cuda::DeviceParams::Life::kOneCall,
                                    nullptr);
    cuda::fake_quantize(call, &device.get(), nullptr);
    target.read(found.data(), target_offset, found.size());
    require_same(type, expected, found, what);
    FakeQuantizeCall in_place = call;
    in_place.y = source.at(source_offset);
    cuda::fake_quantize(in_place, &device.get(), nullptr);
    source.read(found.data(), source_offset, found.size());
    require_same(type, expected, found, what + " in place");
  }
}

void compare_dynamic(const Case& c, ElementType type, const char* qtype, const char* scale_type, int symmetric,
                     Random& random) {
  DynamicSpec spec;
  if (!spec.parse(qtype, "half_even", scale_type, symmetric, blocks_of(c)).empty()) return;  // no such kind
  Shape params;
  require(spec.blocks.scale_shape(c.x, params).empty(), "scale_shape");
  ParamLayout layout;
  require(layout.fit(c.x, params, spec.blocks).empty(), "fit");
  const size_t count = static_cast<size_t>(layout.param_count());
  const std::vector<unsigned char> x = random_elements(type, layout.element_count(), random);
  std::vector<unsigned char> expected(x.size()), found(x.size());
  std::vector<unsigned char> scales(8 * count), found_scales(8 * count);
  float* const scale = reinterpret_cast<float*>(scales.data());
  cpu::dynamic_fake_quantize(
      {x.data(), expected.data(), type, scale, scale + count, &layout, spec.grid, spec.rule, 0.0f},
      threads_for(layout.element_count()));
  Device source(x.size()), target(x.size()), device_scales(8 * count);
  source.fill(x.data(), 0, x.size());
  float* const device_scale = reinterpret_cast<float*>(device_scales.at(0));
  cuda::dynamic_fake_quantize({source.at(0), target.at(0), type, device_scale, device_scale + count, &layout, spec.grid,
                               spec.rule, 0.0f},
                              nullptr);
  const std::string what = std::string("DynamicFakeQuantize ") + qtype + " " + scale_type;
  device_scales.read(found_scales.data(), 0, found_scales.size());
  require_same(ElementType::kFloat32, scales, found_scales, what + " scales");
  target.read(found.data(), 0, found.size());
  require_same(type, expected, found, what);
  cuda::dynamic_fake_quantize(
      {source.at(0), source.at(0), type, nullptr, nullptr, &layout, spec.grid, spec.rule, 0.0f}, nullptr);
  source.read(found.data(), 0, found.size());
  require_same(type, expected, found, what + " in place");
}

void compare_statistics(ElementType type, const std::vector<unsigned char>& x, size_t offset, bool histogram,
                        const std::string& what) {
  const int64_t count = static_cast<int64_t>(x.size() / element_size(type));
  std::vector<int64_t> expected = empty_state(histogram);
  Device source(x.size() + 64);
  Device state(expected.size() * 8);
  source.fill(x.data(), offset * element_size(type), x.size());
  state.fill(expected.data(), 0, state.bytes());
  for (int again = 0; again < 2; ++again) {
    cpu::merge_statistics({x.data(), type, count, expected.data(), histogram}, threads_for(count));
    cuda::merge_statistics({source.at(offset * element_size(type)), type, count,
                            reinterpret_cast<int64_t*>(state.at(0)), histogram},
                           nullptr);
  }
  std::vector<int64_t> found(expected.size());
  state.read(found.data(), 0, state.bytes());
  for (size_t i = 0; i < found.size(); ++i) {
    require(found[i] == expected[i], "MergeStatistics of " + what + ": number " + std::to_string(i) + " is " +
                                         std::to_string(expected[i]) + " on the CPU and " + std::to_string(found[i]) +
                                         " on the GPU");
  }
  values_compared += count;
}

// The same by groups, one for each scale.
void compare_groups(const Case& c, ElementType type, bool histogram, Random& random) {
  Shape params;
  ParamLayout layout;
  require(blocks_of(c).scale_shape(c.x, params).empty(), "scale_shape");
  require(layout.fit(c.x, params, blocks_of(c)).empty(), "fit");
  const std::vector<int64_t> empty = empty_state(histogram);
  std::vector<int64_t> expected;
  for (int64_t g = 0; g < layout.param_count(); ++g) expected.insert(expected.end(), empty.begin(), empty.end());
  const std::vector<unsigned char> x = random_elements(type, layout.element_count(), random);
  Device source(x.size());
  Device state(expected.size() * 8);
  source.fill(x.data(), 0, x.size());
  state.fill(expected.data(), 0, expected.size() * 8);
  for (int again = 0; again < 2; ++again) {
    cpu::merge_statistics({x.data(), type, layout.element_count(), expected.data(), histogram, &layout},
                          threads_for(layout.element_count()));
    cuda::merge_statistics({source.at(0), type, layout.element_count(), reinterpret_cast<int64_t*>(state.at(0)),
                            histogram, &layout},
                           nullptr);
  }
  std::vector<int64_t> found(expected.size());
  state.read(found.data(), 0, found.size() * 8);
  require(found == expected, "MergeStatistics of " + std::to_string(layout.param_count()) + " groups");
  values_compared += layout.element_count();
}

std::vector<unsigned char> as_elements(ElementType type, const std::vector<float>& x) {
  std::vector<unsigned char> made(x.size() * element_size(type));
  for (size_t i = 0; i < x.size(); ++i) {
    const uint16_t half = type == ElementType::kFloat16 ? float16_from_float(x[i]) : bfloat16_from_float(x[i]);
    type == ElementType::kFloat32 ? std::memcpy(&made[4 * i], &x[i], 4) : std::memcpy(&made[2 * i], &half, 2);
  }
  return made;
}

// Sums of uniform numbers: near enough to normal ones.
std::vector<float> bell(int64_t count, Random& random) {
  std::vector<float> made(static_cast<size_t>(count));
  for (float& x : made) {
    const uint64_t bits = random();
    x = 0.0f;
    for (int part = 0; part < 4; ++part) x += static_cast<float>((bits >> (16 * part)) & 0xffffu) / 32768.0f - 1.0f;
  }
  return made;
}

const std::vector<const char*> kAllTypes = {
    "int2",         "int4",           "uint4",      "int8",           "uint8",
    "int16",        "uint16",         "float6e2m3", "int8[-127,127]", "float4e2m1",
    "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float6e3m2"};

void compare_formats(const std::vector<Case>& cases, const std::vector<const char*>& qtypes) {
  Random random;
  for (const Case& c : cases) {
    for (ElementType type : kElements) {
      for (const char* qtype : qtypes) {
        for (const char* rounding : kRoundings) {
          for (const char* arithmetic : {"divide", "reciprocal"}) {
            const Kind kind{qtype, rounding, arithmetic, static_cast<int64_t>(random() % 2)};
            const int zero_points = std::string(qtype).rfind("float", 0) == 0 ? 0 : static_cast<int>(random() % 3);
            compare_fake_quantize(c, type, kind, zero_points, random() % 2 == 0, random);
          }
        }
        for (const char* scale_type : {"float32", "e8m0", "e4m3"}) {
          for (int symmetric : {0, 1}) compare_dynamic(c, type, qtype, scale_type, symmetric, random);
        }
      }
    }
  }
}

void compare_all_statistics(const std::vector<Case>& cases, int64_t statistics_count) {
  // States of more groups take gigabytes.
  constexpr int64_t kMostCompared = 400;
  Random random;
  for (const Case& c : cases) {
    for (ElementType type : kElements) {
      for (bool histogram : {true, false}) {
        Shape params;
        require(blocks_of(c).scale_shape(c.x, params).empty(), "scale_shape");
        if (product(params) <= kMostCompared) compare_groups(c, type, histogram, random);
      }
    }
  }
  for (ElementType type : kElements) {
    for (bool histogram : {true, false}) {
      for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{1000}, statistics_count}) {
        const size_t offset = random() % 4;
        compare_statistics(type, random_elements(type, count, random), offset, histogram, "random bits");
        compare_statistics(type, as_elements(type, bell(count, random)), offset, histogram, "normal values");
        const std::vector<float> constant(static_cast<size_t>(count), 6.0f);
        compare_statistics(type, as_elements(type, constant), offset, histogram, "a constant");
      }
    }
  }
}

// Every float32 there is, a quarter of them for float8, and every 16-bit float with many scales.
void compare_exhaustively() {
  Random random;
  constexpr int64_t kPart = int64_t{1} << 26;
  Device source(4 * kPart), target(4 * kPart);
  std::vector<unsigned char> x(4 * kPart), expected(4 * kPart), found(4 * kPart);
  for (const char* qtype : {"int8", "float8e4m3fn"}) {
    FakeQuantizeSpec spec;
    require(spec.parse(qtype, "half_even", "divide", 1, {}).empty(), qtype);
    ParamLayout layout;
    require(layout.fit({kPart}, {}, {}).empty(), "fit");
    for (uint32_t part = 0; part < 64; part += spec.grid.is_float ? 4 : 1) {
      for (uint32_t i = 0; i < kPart; ++i) {
        const uint32_t bits = part << 26 | i;
        std::memcpy(&x[4 * size_t{i}], &bits, 4);
      }
      const float scale = 0.001f + static_cast<float>(random() % 100000) * 1e-5f;
      FakeQuantizeCall call = spec.call(x.data(), expected.data(), ElementType::kFloat32, &scale, nullptr, layout);
      cpu::fake_quantize(call, all_cores());
      source.fill(x.data(), 0, x.size());
      call.x = source.at(0);
      call.y = target.at(0);
      cuda::fake_quantize(call, nullptr, nullptr);
      target.read(found.data(), 0, found.size());
      require_same(ElementType::kFloat32, expected, found, std::string("all floats, ") + qtype);
    }
  }
  const Case rows{{100, 65536}, {1, -1}};
  for (ElementType type : {ElementType::kFloat16, ElementType::kBfloat16}) {
    for (const char* qtype : kAllTypes) {
      compare_fake_quantize(rows, type, {qtype, "half_even", "divide", 1}, 0, true, random);
    }
  }
  // A scale for each element, of all magnitudes.
  const Case single{{20000000}, {1}};
  for (const char* qtype : {"int8", "uint16", "float8e5m2"}) {
    compare_fake_quantize(single, ElementType::kFloat32, {qtype, "half_even", "divide", 0}, 0, false, random);
  }
}

// More than 2^32 elements: rows of 2^26, each with its scale; every row has the same values.
void compare_large() {
  constexpr int64_t kRow = int64_t{1} << 26;
  constexpr int64_t kRows = 65;
  size_t free_bytes = 0;
  size_t total = 0;
  check(cudaMemGetInfo(&free_bytes, &total), "ask for memory");
  if (free_bytes < static_cast<size_t>(kRow) * kRows * 2 + (size_t{1} << 30)) {
    std::printf("not enough memory for 2^32 elements: left out\n");
    return;
  }
  Random random;
  const ElementType type = ElementType::kBfloat16;
  const std::vector<unsigned char> row = random_elements(type, kRow, random);
  Device x(row.size() * kRows);
  for (int64_t r = 0; r < kRows; ++r) x.fill(row.data(), static_cast<size_t>(r) * row.size(), row.size());

  std::vector<int64_t> expected = empty_state(true);
  for (int64_t r = 0; r < kRows; ++r) {
    cpu::merge_statistics({row.data(), type, kRow, expected.data(), true}, all_cores());
  }
  Device state(expected.size() * 8);
  const std::vector<int64_t> empty = empty_state(true);
  state.fill(empty.data(), 0, state.bytes());
  cuda::merge_statistics({x.at(0), type, kRow * kRows, reinterpret_cast<int64_t*>(state.at(0)), true}, nullptr);
  std::vector<int64_t> found_state(expected.size());
  state.read(found_state.data(), 0, state.bytes());
  require(found_state == expected, "MergeStatistics of more than 2^32 elements");
  values_compared += kRow * kRows;

  const Kind kind{"int8", "half_even", "divide", 1};
  FakeQuantizeSpec spec;
  Blocks blocks;
  blocks.axis = 0;
  require(spec.parse(kind.qtype, kind.rounding, kind.arithmetic, 1, blocks).empty(), "parse");
  const std::vector<float> scale = make_scales(kRows, true, kind, random);
  ParamLayout layout;
  require(layout.fit({kRows, kRow}, {kRows}, blocks).empty(), "fit");
  const cuda::DeviceParams params(scale.data(), nullptr, kRows, cuda::DeviceParams::Life::kLasting, nullptr);
  cuda::fake_quantize(spec.call(x.at(0), x.at(0), type, scale.data(), nullptr, layout), &params.get(), nullptr);
  ParamLayout one;
  require(one.fit({kRow}, {}, {}).empty(), "fit");
  std::vector<unsigned char> wanted(row.size()), found(row.size());
  for (int64_t r = 0; r < kRows; ++r) {
    const float* const own = &scale[static_cast<size_t>(r)];
    cpu::fake_quantize(spec.call(row.data(), wanted.data(), type, own, nullptr, one), all_cores());
    x.read(found.data(), static_cast<size_t>(r) * row.size(), row.size());
    require_same(type, wanted, found, "more than 2^32 elements, row " + std::to_string(r));
  }
}

// Median seconds of `body`, by the device's clock.
double seconds(const std::function<void()>& body, int rounds = 21) {
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "time");
  check(cudaEventCreate(&stop), "time");
  std::vector<float> times;
  for (int i = 0; i < rounds + 3; ++i) {
    check(cudaEventRecord(start), "time");
    body();
    check(cudaEventRecord(stop), "time");
    check(cudaEventSynchronize(stop), "run a kernel");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, start, stop), "time");
    if (i >= 3) times.push_back(milliseconds);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds / 2)] / 1e3;
}

std::string number(double value, const char* format) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

struct Row {
  std::string what;
  double seconds;
  double bytes;
  std::string mark;
};

std::vector<Row> measure_fake_quantize(Device& x, Device& y, ElementType type, int64_t count) {
  std::vector<Row> rows;
  const double bytes = 2.0 * static_cast<double>(count) * static_cast<double>(element_size(type));
  const int64_t columns = 4096;
  const auto one = [&](const char* name, const char* qtype, const char* rounding, const Shape& shape,
                       const Shape& block, const char* mark) {
    FakeQuantizeSpec spec;
    require(spec.parse(qtype, rounding, "divide", 1, blocks_of({shape, block})).empty(), qtype);
    Shape params;
    require(spec.blocks.scale_shape(shape, params).empty(), "scale_shape");
    ParamLayout layout;
    require(layout.fit(shape, params, spec.blocks).empty(), "fit");
    const std::vector<float> scale(static_cast<size_t>(layout.param_count()), 0.05f);
    const cuda::DeviceParams device(scale.data(), nullptr, layout.param_count(), cuda::DeviceParams::Life::kLasting,
                                    nullptr);
    const FakeQuantizeCall call = spec.call(x.at(0), y.at(0), type, scale.data(), nullptr, layout);
    const cuda::Params* const given = layout.param_count() == 1 ? nullptr : &device.get();
    rows.push_back({name, seconds([&] { cuda::fake_quantize(call, given, nullptr); }), bytes, mark});
  };
  const Shape matrix{count / columns, columns};
  const Shape images{count / (64 * 56 * 56), 64, 56, 56};
  const Shape odd_images{count / (512 * 7 * 7), 512, 7, 7};
  one("int8 per tensor", "int8", "half_even", matrix, {}, "0.9");
  one("int8 axis 0", "int8", "half_even", matrix, {1, -1}, "0.9");
  one("int8 axis 1 of [N, 64, 56, 56]", "int8", "half_even", images, {-1, 1, -1, -1}, "0.9");
  one("int8 axis 1 of [N, 512, 7, 7]", "int8", "half_even", odd_images, {-1, 1, -1, -1}, "");
  one("int8 last axis", "int8", "half_even", matrix, {-1, 1}, "");
  one("int8 blocks of 128", "int8", "half_even", matrix, {1, 128}, "0.9");
  one("int8 blocks of 32", "int8", "half_even", matrix, {1, 32}, "0.9");
  one("int8 blocks of 16", "int8", "half_even", matrix, {1, 16}, "");
  one("int8 half_away per tensor", "int8", "half_away", matrix, {}, "");
  one("float8e4m3fn per tensor", "float8e4m3fn", "half_even", matrix, {}, "0.9");
  one("float4e2m1 blocks of 16", "float4e2m1", "half_even", matrix, {1, 16}, "");
  const auto dynamic = [&](const char* name, const char* qtype, const char* scale_type, const Shape& block) {
    DynamicSpec spec;
    require(spec.parse(qtype, "half_even", scale_type, 1, blocks_of({matrix, block})).empty(), qtype);
    Shape params;
    require(spec.blocks.scale_shape(matrix, params).empty(), "scale_shape");
    ParamLayout layout;
    require(layout.fit(matrix, params, spec.blocks).empty(), "fit");
    const DynamicFakeQuantizeCall call{x.at(0), y.at(0),  type,      nullptr, nullptr,
                                       &layout, spec.grid, spec.rule, 0.0f};
    rows.push_back({name, seconds([&] { cuda::dynamic_fake_quantize(call, nullptr); }), bytes, ""});
  };
  dynamic("dynamic int8 rows", "int8", "float32", {1, -1});
  dynamic("dynamic MX float8e4m3fn, blocks of 32", "float8e4m3fn", "e8m0", {1, 32});
  return rows;
}

Row measure_statistics(Device& x, ElementType type, int64_t count, bool histogram, const std::string& what,
                       const char* mark) {
  const std::vector<int64_t> empty = empty_state(histogram);
  Device state(empty.size() * 8);
  state.fill(empty.data(), 0, state.bytes());
  const MergeStatisticsCall call{x.at(0), type, count, reinterpret_cast<int64_t*>(state.at(0)), histogram};
  return {std::string("MergeStatistics, ") + what, seconds([&] { cuda::merge_statistics(call, nullptr); }),
          static_cast<double>(count) * static_cast<double>(element_size(type)), mark};
}

// By channels: one state for each of 64.
Row measure_groups(Device& x, ElementType type, int64_t count) {
  const Case images{{count / (64 * 56 * 56), 64, 56, 56}, {-1, 1, -1, -1}};
  Shape params;
  require(blocks_of(images).scale_shape(images.x, params).empty(), "scale_shape");
  ParamLayout layout;
  require(layout.fit(images.x, params, blocks_of(images)).empty(), "fit");
  Device states(static_cast<size_t>(layout.param_count() * kStateSize) * 8);
  check(cudaMemset(states.at(0), 0, states.bytes()), "clear");
  const MergeStatisticsCall call{x.at(0), type, layout.element_count(), reinterpret_cast<int64_t*>(states.at(0)), true,
                                 &layout};
  return {"MergeStatistics, histogram by channels of [N, 64, 56, 56]",
          seconds([&] { cuda::merge_statistics(call, nullptr); }),
          static_cast<double>(layout.element_count()) * static_cast<double>(element_size(type)), ""};
}

// Repeats a part of x until it is full.
void fill(Device& x, const std::vector<unsigned char>& part) {
  for (size_t done = 0; done < x.bytes(); done += part.size()) {
    x.fill(part.data(), done, std::min(part.size(), x.bytes() - done));
  }
}

void measure(const char* path) {
  int device = 0;
  int driver = 0;
  int runtime = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "ask for the device");
  check(cudaGetDeviceProperties(&properties, device), "ask for the device");
  check(cudaDriverGetVersion(&driver), "ask for the driver");
  check(cudaRuntimeGetVersion(&runtime), "ask for the runtime");
  const size_t bytes = std::min<size_t>(size_t{2} << 30, properties.totalGlobalMem / 8);
  Device x(bytes), y(bytes);
  Random random;
  std::ostringstream page;
  page << "# CUDA kernels on " << properties.name << "\n\n"
       << "Driver for CUDA " << driver / 1000 << "." << driver % 1000 / 10 << ", runtime " << runtime / 1000 << "."
       << runtime % 1000 / 10 << ", " << properties.multiProcessorCount << " multiprocessors, L2 "
       << properties.l2CacheSize / (1 << 20) << " MB. Tensors of " << (bytes >> 20)
       << " MB, medians of 21 runs by CUDA events. speed / copy: bytes a second against those that a copy from device"
          " to device of the same tensor reads and writes in the same run.\n\n"
       << "| type | what | ms | GB/s | speed / copy | mark |\n| --- | --- | --- | --- | --- | --- |\n";
  // After each part: what was measured outlasts a program that is stopped.
  const auto save = [&] {
    if (path) std::ofstream(path) << page.str();
  };
  int marks = 0;
  int missed = 0;
  for (ElementType type : {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16}) {
    const char* const name = type == ElementType::kFloat32   ? "float32"
                             : type == ElementType::kFloat16 ? "float16"
                                                             : "bfloat16";
    const int64_t count = static_cast<int64_t>(bytes / element_size(type));
    fill(x, as_elements(type, bell(1 << 24, random)));
    const auto copy_all = [&] { check(cudaMemcpyAsync(y.at(0), x.at(0), bytes, cudaMemcpyDeviceToDevice), "copy"); };
    const Row copy{"copy", seconds(copy_all), 2.0 * static_cast<double>(bytes), ""};
    std::vector<Row> rows{copy};
    for (Row& row : measure_fake_quantize(x, y, type, count)) rows.push_back(row);
    rows.push_back(measure_statistics(x, type, count, false, "range of normal values", "0.7"));
    rows.push_back(measure_statistics(x, type, count, true, "histogram of normal values", "0.7"));
    rows.push_back(measure_groups(x, type, count));
    std::vector<float> relu = bell(1 << 24, random);
    for (float& value : relu) value = std::max(value, 0.0f);
    fill(x, as_elements(type, relu));
    rows.push_back(measure_statistics(x, type, count, true, "histogram after ReLU", ""));
    fill(x, as_elements(type, std::vector<float>(1 << 20, 6.0f)));
    rows.push_back(measure_statistics(x, type, count, true, "histogram of a constant", "0.5"));
    fill(x, random_elements(type, 1 << 24, random));
    rows.push_back(measure_statistics(x, type, count, true, "histogram of random bits", ""));
    const double speed = copy.bytes / copy.seconds;
    for (const Row& row : rows) {
      const double ratio = row.bytes / row.seconds / speed;
      const bool met = row.mark.empty() || ratio >= std::stod(row.mark);
      marks += row.mark.empty() ? 0 : 1;
      missed += met ? 0 : 1;
      page << "| " << name << " | " << row.what << " | " << number(row.seconds * 1e3, "%.3f") << " | "
           << number(row.bytes / row.seconds / 1e9, "%.0f") << " | " << number(ratio, "%.2f") << " | " << row.mark
           << (met ? "" : " missed") << " |\n";
    }
    save();
  }
  // Small tensors: what a launch costs, queued one after the other.
  constexpr int kLaunches = 2000;
  FakeQuantizeSpec spec;
  require(spec.parse("int8", "half_even", "divide", 1, {}).empty(), "parse");
  ParamLayout layout;
  require(layout.fit({4096}, {}, {}).empty(), "fit");
  const float scale = 0.05f;
  const FakeQuantizeCall call = spec.call(x.at(0), y.at(0), ElementType::kFloat32, &scale, nullptr, layout);
  const std::vector<int64_t> empty = empty_state(true);
  Device state(empty.size() * 8);
  state.fill(empty.data(), 0, state.bytes());
  const MergeStatisticsCall statistics{x.at(0), ElementType::kFloat32, 4096, reinterpret_cast<int64_t*>(state.at(0)),
                                       true};
  page << "\nSmall tensors, 4096 floats, one launch each, " << kLaunches << " in a row:\n\n"
       << "| what | microseconds a call |\n| --- | --- |\n";
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"copy", [&] { check(cudaMemcpyAsync(y.at(0), x.at(0), 16384, cudaMemcpyDeviceToDevice), "copy"); }},
      {"FakeQuantize per tensor", [&] { cuda::fake_quantize(call, nullptr, nullptr); }},
      {"MergeStatistics with histogram", [&] { cuda::merge_statistics(statistics, nullptr); }}};
  for (const auto& [what, run] : calls) {
    run();
    check(cudaDeviceSynchronize(), "run a kernel");
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kLaunches; ++i) run();
    check(cudaDeviceSynchronize(), "run a kernel");
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    page << "| " << what << " | " << number(took.count() / kLaunches, "%.2f") << " |\n";
  }
  page << "\n" << marks - missed << " of " << marks << " marks met.\n";
  std::fputs(page.str().c_str(), stdout);
  save();
}

int run(const std::string& what, const char* path) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::printf("no GPU: %s\n", cudaGetErrorString(found));
    return kNoGpu;
  }
  const std::vector<Case> small = {
      {{67}, {}}, {{67}, {16}}, {{5, 7}, {1, 3}}, {{9, 33}, {-1, 1}}, {{3, 65}, {1, 32}}, {{3, 5, 7, 11}, {2, -1, 3, 4}}};
  const std::vector<Case> all = {std::begin(kCases), std::end(kCases)};
  const std::pair<const char*, std::function<void()>> comparisons[] = {
      {"small",
       [&] {
         compare_formats(small, {"int8", "uint16", "float8e4m3fn"});
         compare_all_statistics(small, 20000);
       }},
      {"formats", [&] { compare_formats(all, kAllTypes); }},
      {"statistics", [&] { compare_all_statistics(all, 10000000); }},
      {"floats", [] { compare_exhaustively(); }},
      {"large", [] { compare_large(); }}};
  for (const auto& [name, compare] : comparisons) {
    if (what != name) continue;
    compare();
    std::printf("ok: %.3g values equal to the bit\n", static_cast<double>(values_compared));
    return 0;
  }
  if (what == "name") {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "ask for the device");
    std::string name = properties.name;
    for (char& letter : name) {
      const int code = static_cast<unsigned char>(letter);
      letter = std::isalnum(code) ? static_cast<char>(std::tolower(code)) : '_';
    }
    std::puts(name.c_str());
    return 0;
  }
  if (what == "speed") {
    measure(path);
    return 0;
  }
  std::fprintf(stderr, "give formats, statistics, floats, large, small, name or speed, got '%s'\n", what.c_str());
  return 2;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(count > 1 ? arguments[1] : "", count > 2 ? arguments[2] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 1;
  }
}
