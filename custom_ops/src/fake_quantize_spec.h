// The attributes of FakeQuantize, checked: what the operator and the C API share.
#pragma once

#include <cmath>
#include <string>

#include "onnxfq/kernels.h"

namespace onnxfq {

struct FakeQuantizeSpec {
  Grid grid{};
  Rounding rounding = Rounding::kHalfEven;
  Arithmetic arithmetic = Arithmetic::kDivide;
  int64_t axis = 1;
  int64_t block_size = 0;

  // Reads the attributes as text. Returns the broken rule as one line, or an empty string.
  std::string parse(const std::string& qtype_name, const std::string& rounding_name,
                    const std::string& arithmetic_name, int64_t axis_value, int64_t block_size_value) {
    axis = axis_value;
    block_size = block_size_value;
    struct Named {
      const char* name;
      Grid grid;
    };
    static constexpr Named kTypes[] = {{"int4", {-8, 7}},       {"uint4", {0, 15}},         {"int8", {-128, 127}},
                                       {"uint8", {0, 255}},     {"int16", {-32768, 32767}}, {"uint16", {0, 65535}}};
    bool known = false;
    for (const Named& type : kTypes) {
      if (qtype_name != type.name) continue;
      grid = type.grid;
      known = true;
    }
    if (!known) return "unknown qtype '" + qtype_name + "'; known: int4, uint4, int8, uint8, int16, uint16";
    if (rounding_name == "half_up") {
      rounding = Rounding::kHalfUp;
    } else if (rounding_name != "half_even") {
      return "unknown rounding '" + rounding_name + "'; known: half_even, half_up";
    }
    if (arithmetic_name == "reciprocal") {
      arithmetic = Arithmetic::kReciprocal;
    } else if (arithmetic_name != "divide") {
      return "unknown arithmetic '" + arithmetic_name + "'; known: divide, reciprocal";
    }
    if (block_size < 0) {
      return "block_size must be at least 1, or 0 to take it from the shapes, got " + std::to_string(block_size);
    }
    return "";
  }

  // Checks the values of scale[count] and zero_point[count] (nullptr: none). Same result as parse.
  std::string check(const float* scale, const float* zero_point, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const float s = scale[i];
      if (!(s > 0.0f && std::isfinite(s))) {
        return "scale must be finite and positive, found " + std::to_string(s) + " at index " + std::to_string(i);
      }
      if (arithmetic == Arithmetic::kReciprocal && !std::isfinite(1.0f / s)) {
        return "scale at index " + std::to_string(i) + " is too small to have a finite reciprocal; use arithmetic "
               "'divide'";
      }
    }
    for (int64_t i = 0; zero_point && i < count; ++i) {
      const float z = zero_point[i];
      if (!(z >= grid.qmin && z <= grid.qmax && z == std::floor(z))) {
        return "zero_point must be an integer in [" + std::to_string(static_cast<int>(grid.qmin)) + ", " +
               std::to_string(static_cast<int>(grid.qmax)) + "], found " + std::to_string(z) + " at index " +
               std::to_string(i);
      }
    }
    return "";
  }

  FakeQuantizeCall call(const float* x, float* y, const float* scale, const float* zero_point,
                        const ParamLayout& layout) const {
    return {x, y, scale, zero_point, &layout, grid, rounding, arithmetic};
  }
};

}  // namespace onnxfq
