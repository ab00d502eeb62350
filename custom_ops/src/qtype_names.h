// Number formats, roundings and arithmetics by name: what attributes hold.
#pragma once

#include <string>

#include "onnxfq/kernels.h"

namespace onnxfq {

// A number format as a name says it.
struct NamedType {
  float qmin;
  float qmax;
  int bits;
  bool is_float;
  FloatFormat format;
};

// Each reads a name into its last argument. Returns the broken rule as one line, or an empty string.
std::string parse_qtype(const std::string& name, NamedType& type);
std::string parse_rounding(const std::string& name, Rounding& rounding);
std::string parse_arithmetic(const std::string& name, Arithmetic& arithmetic);
std::string parse_scale_type(const std::string& name, ScaleType& type);

// Grid of a type. saturate false: an overflow of a float type becomes its infinity or NaN, where it has one.
Grid grid_of(const NamedType& type, Rounding rounding, Arithmetic arithmetic, bool saturate);

}  // namespace onnxfq
