// The attributes of FakeQuantize, checked: what the operator and the C API share.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "onnxfq/kernels.h"
#include "qtype_names.h"

namespace onnxfq {

struct FakeQuantizeSpec {
  NamedType type{};
  Grid grid{};
  Blocks blocks{};

  // Reads the attributes as text. Returns the broken rule as one line, or an empty string.
  std::string parse(const std::string& qtype, const std::string& rounding, const std::string& arithmetic,
                    int64_t saturate, const Blocks& given) {
    blocks = given;
    Rounding r{};
    Arithmetic a{};
    std::string problem = parse_qtype(qtype, type);
    if (problem.empty()) problem = parse_rounding(rounding, r);
    if (problem.empty()) problem = parse_arithmetic(arithmetic, a);
    if (problem.empty()) problem = blocks.check();
    if (!problem.empty()) return problem;
    if (saturate != 0 && saturate != 1) return "saturate must be 0 or 1, got " + std::to_string(saturate);
    grid = grid_of(type, r, a, saturate == 1);
    return "";
  }

  // Checks the values of scale[count] and zero_point[count] (nullptr: none). Same result as parse.
  std::string check(const float* scale, const float* zero_point, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const float s = scale[i];
      if (!(s > 0.0f && std::isfinite(s))) {
        return "scale must be finite and positive, found " + std::to_string(s) + " at index " + std::to_string(i);
      }
      if (grid.arithmetic == Arithmetic::kReciprocal && !std::isfinite(1.0f / s)) {
        return "scale at index " + std::to_string(i) + " is too small to have a finite reciprocal; use arithmetic "
               "'divide'";
      }
    }
    for (int64_t i = 0; zero_point && i < count; ++i) {
      const float z = zero_point[i];
      if (grid.is_float && z != 0.0f) {
        return "zero_point must be 0 for a float type, found " + std::to_string(z) + " at index " + std::to_string(i);
      }
      if (!(z >= grid.qmin && z <= grid.qmax)) {
        return "zero_point must lie in [" + std::to_string(static_cast<int>(grid.qmin)) + ", " +
               std::to_string(static_cast<int>(grid.qmax)) + "], found " + std::to_string(z) + " at index " +
               std::to_string(i);
      }
    }
    return "";
  }

  FakeQuantizeCall call(const void* x, void* y, ElementType element, const float* scale, const float* zero_point,
                        const ParamLayout& layout) const {
    bool fractional = false;
    for (int64_t i = 0; zero_point && i < layout.param_count(); ++i) {
      fractional = fractional || zero_point[i] != std::floor(zero_point[i]);
    }
    return {x, y, element, scale, zero_point, &layout, grid, fractional};
  }
};

}  // namespace onnxfq
