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
    // Blocks make millions of them: a first look without words, which vectorises.
    bool good = true;
    for (int64_t i = 0; i < count; ++i) good &= good_scale(scale[i]);
    for (int64_t i = 0; zero_point && i < count; ++i) good &= good_zero_point(zero_point[i]);
    if (good) return "";
    for (int64_t i = 0; i < count; ++i) {
      const std::string where = " at index " + std::to_string(i);
      if (!good_scale(scale[i])) {
        if (positive(scale[i])) {
          return "scale" + where + " is too small to have a finite reciprocal; use arithmetic 'divide'";
        }
        return "scale must be finite and positive, found " + std::to_string(scale[i]) + where;
      }
      if (zero_point && !good_zero_point(zero_point[i])) {
        const std::string rule = grid.is_float ? "be 0 for a float type"
                                               : "lie in [" + std::to_string(static_cast<int>(grid.qmin)) + ", " +
                                                     std::to_string(static_cast<int>(grid.qmax)) + "]";
        return "zero_point must " + rule + ", found " + std::to_string(zero_point[i]) + where;
      }
    }
    return "";
  }

  FakeQuantizeCall call(const void* x, void* y, ElementType element, const float* scale, const float* zero_point,
                        const ParamLayout& layout) const {
    return {x, y, element, scale, zero_point, &layout, grid, any_fraction(zero_point, layout.param_count())};
  }

  // Whether some zero point is not an integer. zero_point may be nullptr.
  static bool any_fraction(const float* zero_point, int64_t count) {
    bool fractional = false;
    for (int64_t i = 0; zero_point && i < count; ++i) {
      fractional = fractional || zero_point[i] != std::floor(zero_point[i]);
    }
    return fractional;
  }

 private:
  // The largest number whose reciprocal is infinite.
  static constexpr float kNotInvertible = 0x1.0p-128f;

  // Comparisons with NaN are false.
  static bool positive(float s) { return (s > 0.0f) & (s <= kLargestFloat); }

  // The reciprocal is not computed: where it was infinite, GCC 13 took s for 0 and gave the message for 0.
  bool good_scale(float s) const {
    const bool invertible = grid.arithmetic == Arithmetic::kDivide || s > kNotInvertible;
    return positive(s) & invertible;
  }

  bool good_zero_point(float z) const {
    const float low = grid.is_float ? 0.0f : grid.qmin;
    const float high = grid.is_float ? 0.0f : grid.qmax;
    return (z >= low) & (z <= high);
  }
};

}  // namespace onnxfq
