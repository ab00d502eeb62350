// Reads names of number formats: int2 ... int16, uint2 ... uint16, int8[-127,127], float8e4m3fn, ...
#include "qtype_names.h"

#include <cstdlib>
#include <limits>

namespace onnxfq {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct NamedFormat {
  const char* name;
  int bits;
  FloatFormat format;
};

// largest number, mantissa bits, smallest exponent, what an overflow becomes, -0 (kept) or 0 (there is no -0)
constexpr NamedFormat kFloats[] = {
    {"float8e4m3fn", 8, {448.0f, 3, -6, kNan, -0.0f}},        {"float8e4m3fnuz", 8, {240.0f, 3, -7, kNan, 0.0f}},
    {"float8e5m2", 8, {57344.0f, 2, -14, kInf, -0.0f}},       {"float8e5m2fnuz", 8, {57344.0f, 2, -15, kNan, 0.0f}},
    {"float6e2m3", 6, {7.5f, 3, 0, 7.5f, -0.0f}},             {"float6e3m2", 6, {28.0f, 2, -2, 28.0f, -0.0f}},
    {"float4e2m1", 4, {6.0f, 1, 0, 6.0f, -0.0f}},
};

std::string unknown(const char* kind, const std::string& name, const char* known) {
  return std::string("unknown ") + kind + " '" + name + "'; known: " + known;
}

// Reads an integer at `at` and moves behind it; false when there is none or it has more than five digits.
bool read_integer(const std::string& text, size_t& at, int& value) {
  const size_t begin = at;
  if (at < text.size() && text[at] == '-') ++at;
  const size_t digits = at;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  if (at == digits || at - digits > 5) return false;
  value = std::atoi(text.substr(begin, at - begin).c_str());
  return true;
}

// Reads one character; false when another stands there.
bool read(const std::string& text, size_t& at, char expected) {
  return at < text.size() && text[at] == expected && ++at;
}

bool parse_integer_type(const std::string& name, NamedType& type) {
  const bool is_signed = name.rfind("int", 0) == 0;
  size_t at = is_signed ? 3 : 4;
  if (!is_signed && name.rfind("uint", 0) != 0) return false;
  // "int-8" and "int08" are not names.
  if (at >= name.size() || name[at] < '1' || name[at] > '9') return false;
  int bits = 0;
  if (!read_integer(name, at, bits) || bits < 2 || bits > 16) return false;
  const int lowest = is_signed ? -(1 << (bits - 1)) : 0;
  const int highest = is_signed ? -lowest - 1 : (1 << bits) - 1;
  int qmin = lowest;
  int qmax = highest;
  if (at < name.size()) {
    const bool read_both = read(name, at, '[') && read_integer(name, at, qmin) && read(name, at, ',') &&
                           read_integer(name, at, qmax) && read(name, at, ']');
    if (!read_both || at != name.size()) return false;
  }
  if (!(lowest <= qmin && qmin <= 0 && 0 <= qmax && qmax <= highest && qmin < qmax)) return false;
  type = {static_cast<float>(qmin), static_cast<float>(qmax), bits, false, {}};
  return true;
}

}  // namespace

std::string parse_qtype(const std::string& name, NamedType& type) {
  for (const NamedFormat& entry : kFloats) {
    if (name != entry.name) continue;
    type = {-entry.format.qmax, entry.format.qmax, entry.bits, true, entry.format};
    return "";
  }
  if (parse_integer_type(name, type)) return "";
  return unknown("qtype", name,
                 "int2 ... int16, uint2 ... uint16, with limits that hold 0 as int8[-127,127], float8e4m3fn, "
                 "float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float6e2m3, float6e3m2, float4e2m1");
}

std::string parse_rounding(const std::string& name, Rounding& rounding) {
  static constexpr struct {
    const char* name;
    Rounding rounding;
  } kRoundings[] = {{"half_even", Rounding::kHalfEven}, {"half_up", Rounding::kHalfUp},
                    {"half_away", Rounding::kHalfAway}, {"half_down", Rounding::kHalfDown},
                    {"floor", Rounding::kFloor},        {"ceil", Rounding::kCeil},
                    {"truncate", Rounding::kTruncate}};
  for (const auto& entry : kRoundings) {
    if (name != entry.name) continue;
    rounding = entry.rounding;
    return "";
  }
  return unknown("rounding", name, "half_even, half_up, half_away, half_down, floor, ceil, truncate");
}

std::string parse_arithmetic(const std::string& name, Arithmetic& arithmetic) {
  arithmetic = name == "reciprocal" ? Arithmetic::kReciprocal : Arithmetic::kDivide;
  return name == "reciprocal" || name == "divide" ? "" : unknown("arithmetic", name, "divide, reciprocal");
}

std::string parse_scale_type(const std::string& name, ScaleType& type) {
  type = name == "e8m0" ? ScaleType::kE8m0 : name == "e4m3" ? ScaleType::kE4m3 : ScaleType::kFloat32;
  return name == "float32" || type != ScaleType::kFloat32 ? "" : unknown("scale_type", name, "float32, e8m0, e4m3");
}

Grid grid_of(const NamedType& type, Rounding rounding, Arithmetic arithmetic, bool saturate) {
  const bool can_overflow = type.is_float && type.format.beyond != type.qmax;  // NaN is not equal
  const float limit = can_overflow && !saturate ? 2.0f * type.qmax : type.qmax;
  return {type.qmin, type.qmax, type.is_float, type.format, limit, rounding, arithmetic};
}

}  // namespace onnxfq
