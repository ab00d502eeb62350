// The attributes of DynamicFakeQuantize, checked: what the operator and the C API share.
#pragma once

#include <algorithm>
#include <string>

#include "onnxfq/kernels.h"
#include "qtype_names.h"

namespace onnxfq {

struct DynamicSpec {
  Grid grid{};
  ScaleRule rule{};
  Blocks blocks{};

  // Reads the attributes as text. Returns the broken rule as one line, or an empty string.
  std::string parse(const std::string& qtype, const std::string& rounding, const std::string& scale_type,
                    int64_t symmetric, const Blocks& given) {
    blocks = given;
    NamedType type{};
    Rounding r{};
    std::string problem = parse_qtype(qtype, type);
    if (problem.empty()) problem = parse_rounding(rounding, r);
    if (problem.empty()) problem = parse_scale_type(scale_type, rule.type);
    if (problem.empty()) problem = blocks.check();
    if (!problem.empty()) return problem;
    if (symmetric != 0 && symmetric != 1) return "symmetric must be 0 or 1, got " + std::to_string(symmetric);
    rule.symmetric = symmetric == 1;
    if (rule.symmetric && !(type.qmin < 0.0f && type.qmax > 0.0f)) {
      return "qtype '" + qtype + "' has no two signs, symmetric needs both; give symmetric = 0 or a signed type";
    }
    if (!rule.symmetric && (type.is_float || rule.type != ScaleType::kFloat32)) {
      return "symmetric = 0 needs an integer qtype and scale_type 'float32', got '" + qtype + "' and '" + scale_type +
             "'";
    }
    rule.format = float8e4m3fn();
    rule.element_step = 1.0f;
    if (rule.type == ScaleType::kE8m0) {
      if (type.is_float) {
        rule.element_exponent = exponent_of(type.qmax);
      } else {
        // MXINT8 holds q / 64; -128 is left out, so that both signs reach equally far.
        rule.element_step = e8m0_value(2 - type.bits);
        type.qmin = std::max(type.qmin, -type.qmax);
      }
    }
    rule.qmin = type.qmin;
    rule.qmax = type.qmax;
    rule.by_magnitude = rule.symmetric && (rule.type != ScaleType::kFloat32 || type.qmin == -type.qmax);
    rule.largest_scale = largest_scale(rule.symmetric ? std::max(type.qmax, -type.qmin) : type.qmax - type.qmin);
    grid = grid_of(type, r, Arithmetic::kDivide, true);
    return "";
  }

  // A given global scale, checked. Same result as parse.
  std::string check_global_scale(float value) const {
    if (rule.type != ScaleType::kE4m3) return "global_scale is for scale_type 'e4m3'; leave it out";
    if (value > 0.0f && value <= kLargestFloat) return "";
    return "global_scale must be finite and positive, found " + std::to_string(value);
  }

 private:
  static int exponent_of(float v) { return static_cast<int>(float_bits(v) >> kFloat32MantissaBits) - kFloat32Bias; }
};

}  // namespace onnxfq
