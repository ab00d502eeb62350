// Values, tensors and shapes that the programs over the kernels share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "../src/dynamic_spec.h"
#include "../src/fake_quantize_spec.h"
#include "onnxfq/kernels.h"

namespace onnxfq {
namespace tests {

using Shape = std::vector<int64_t>;

inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what.c_str());
  std::exit(1);
}

// Two threads, each with every other task.
inline cpu::Threads two_threads() {
  return {[](void*, void (*task)(void*, size_t), size_t count, void* data) {
            std::thread other([=] {
              for (size_t i = 1; i < count; i += 2) task(data, i);
            });
            for (size_t i = 0; i < count; i += 2) task(data, i);
            other.join();
          },
          nullptr};
}

inline int64_t product(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

// Values over all magnitudes, with zeros, NaN and infinities; the same at every run.
inline std::vector<float> values(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  uint32_t state = 12345;
  for (size_t i = 0; i < x.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const float plain = static_cast<float>(static_cast<int32_t>(state)) / 1e9f;
    x[i] = i % 3 ? plain : float_from_bits(state);
  }
  return x;
}

// Equal bits, or both NaN: which NaN is not said.
inline bool same_bits(float a, float b) { return float_bits(a) == float_bits(b) || (a != a && b != b); }

// x as elements of a type, in memory of exactly its size that starts at an odd place.
struct Elements {
  Elements(ElementType t, const std::vector<float>& x, size_t offset) : type(t), shift(offset * element_size(t)) {
    memory.resize(shift + x.size() * element_size(t));
    memory.shrink_to_fit();
    for (size_t i = 0; i < x.size(); ++i) {
      const uint16_t half = t == ElementType::kFloat16 ? float16_from_float(x[i]) : bfloat16_from_float(x[i]);
      if (t == ElementType::kFloat32) {
        std::memcpy(memory.data() + shift + i * 4, &x[i], 4);
      } else {
        std::memcpy(memory.data() + shift + i * 2, &half, 2);
      }
    }
  }
  void* data() { return memory.data() + shift; }
  int64_t count() const { return static_cast<int64_t>((memory.size() - shift) / element_size(type)); }

  float at(int64_t i) const {
    const unsigned char* element = memory.data() + shift + static_cast<size_t>(i) * element_size(type);
    if (type == ElementType::kFloat32) {
      float x;
      std::memcpy(&x, element, sizeof x);
      return x;
    }
    uint16_t half;
    std::memcpy(&half, element, sizeof half);
    return type == ElementType::kFloat16 ? float_from_float16(half) : float_from_bfloat16(half);
  }

  bool same_as(const Elements& other) const {
    bool same = count() == other.count();
    for (int64_t i = 0; same && i < count(); ++i) same = same_bits(at(i), other.at(i));
    return same;
  }

  ElementType type;
  size_t shift;
  std::vector<unsigned char> memory;
};

struct Case {
  Shape x;
  Shape block_shape;  // empty: per tensor
};

const Case kCases[] = {
    {{}, {}},           {{0}, {}},           {{1}, {}},           {{15}, {1}},       {{16}, {16}},
    {{17}, {16}},       {{31}, {-1}},        {{33}, {32}},        {{67}, {16}},      {{3, 0, 2}, {1, 1, -1}},
    {{5, 7}, {1, 3}},   {{5, 7}, {2, 1}},    {{3, 65}, {1, 32}},  {{65, 3}, {1, 1}}, {{7, 129}, {-1, 1}},
    {{9, 100}, {4, 9}}, {{300, 3}, {1, -1}}, {{2, 40000}, {1, 16}}, {{2100, 33}, {-1, 1}},
    {{3, 5, 7, 11}, {2, -1, 3, 4}},
};

const char* const kTypes[] = {"int2",         "uint8",          "int8[-127,127]", "int16",
                              "float8e4m3fn", "float8e5m2fnuz", "float4e2m1"};
const char* const kRoundings[] = {"half_even", "half_up", "half_away", "half_down", "floor", "ceil", "truncate"};
const ElementType kElements[] = {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBfloat16};

inline Blocks blocks_of(const Case& c) {
  Blocks blocks;
  blocks.axis_given = false;
  blocks.shape = c.block_shape;
  return blocks;
}

// The statistics of nothing.
inline std::vector<int64_t> empty_state(bool histogram) {
  std::vector<int64_t> state(static_cast<size_t>(histogram ? kStateSize : kStateHeader));
  state[kStateMinKey] = INT32_MAX;
  state[kStateMaxKey] = INT32_MIN;
  return state;
}

}  // namespace tests
}  // namespace onnxfq
