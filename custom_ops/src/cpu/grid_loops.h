// Picks the quantizer of a grid once, so that the loops that use it hold no choice.
#pragma once

#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cpu {

// Makes quantizers of one kind: its operator() takes a scale and a zero point.
template <Rounding R, Arithmetic A>
struct IntegerQuantizers {
  float fraction;
  float qmin;
  float qmax;

  FQ_INLINE IntegerQuantizer<R, A> operator()(float scale, float zero_point) const {
    return {scale, zero_point, fraction, qmin, qmax};
  }
};

template <Rounding R, Arithmetic A>
struct FloatQuantizers {
  FloatFormat format;
  float limit;

  FQ_INLINE FloatQuantizer<R, A> operator()(float scale, float) const { return {scale, format, limit}; }
};

template <Rounding R, Arithmetic A, typename Body>
FQ_INLINE void with_arithmetic(const Grid& grid, bool fractional, const Body& body) {
  if (grid.is_float) {
    body(FloatQuantizers<R, A>{grid.format, grid.limit});
  } else {
    body(IntegerQuantizers<R, A>{fractional ? 1.0f : 0.0f, grid.qmin, grid.qmax});
  }
}

template <Rounding R, typename Body>
FQ_INLINE void with_rounding(const Grid& grid, bool fractional, const Body& body) {
  if (grid.arithmetic == Arithmetic::kDivide) {
    with_arithmetic<R, Arithmetic::kDivide>(grid, fractional, body);
  } else {
    with_arithmetic<R, Arithmetic::kReciprocal>(grid, fractional, body);
  }
}

// Calls body with the maker of the grid's quantizers.
template <typename Body>
FQ_INLINE void with_quantizers(const Grid& grid, bool fractional, const Body& body) {
  switch (grid.rounding) {
    case Rounding::kHalfEven: return with_rounding<Rounding::kHalfEven>(grid, fractional, body);
    case Rounding::kHalfUp: return with_rounding<Rounding::kHalfUp>(grid, fractional, body);
    case Rounding::kHalfAway: return with_rounding<Rounding::kHalfAway>(grid, fractional, body);
    case Rounding::kHalfDown: return with_rounding<Rounding::kHalfDown>(grid, fractional, body);
    case Rounding::kFloor: return with_rounding<Rounding::kFloor>(grid, fractional, body);
    case Rounding::kCeil: return with_rounding<Rounding::kCeil>(grid, fractional, body);
    case Rounding::kTruncate: return with_rounding<Rounding::kTruncate>(grid, fractional, body);
  }
}

}  // namespace cpu
}  // namespace onnxfq
