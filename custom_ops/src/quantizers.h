// Picks the quantizer of a grid once, so that the loops that use it hold no choice.
#pragma once

#include "onnxfq/kernels.h"

namespace onnxfq {

// How a single value is measured where InSteps is made once for many: what DivideFused saves, making it costs.
template <typename InSteps>
struct ForOneValue {
  using Type = InSteps;
};
template <>
struct ForOneValue<DivideFused> {
  using Type = Divide;
};

// Makes quantizers of one kind: its operator() takes a scale and a zero point. once(): the same for a single value.
template <typename Round, typename InSteps, bool Fractions = true>
struct IntegerQuantizers {
  using RoundType = Round;
  Round round;
  float fraction;
  float qmin;
  float qmax;

  FQ_HD FQ_INLINE IntegerQuantizer<Round, InSteps, Fractions> operator()(float scale, float zero_point) const {
    return {round, scale, zero_point, fraction, qmin, qmax};
  }
  FQ_HD FQ_INLINE auto once(float scale, float zero_point) const {
    return IntegerQuantizer<Round, typename ForOneValue<InSteps>::Type, Fractions>(round, scale, zero_point, fraction,
                                                                                   qmin, qmax);
  }
};

template <typename Round, typename InSteps, bool Saturates = false>
struct FloatQuantizers {
  using RoundType = Round;
  Round round;
  FloatFormat format;
  float limit;

  FQ_HD FQ_INLINE FloatQuantizer<Round, InSteps, Saturates> operator()(float scale, float) const {
    return {round, scale, format, limit};
  }
  FQ_HD FQ_INLINE auto once(float scale, float) const {
    return FloatQuantizer<Round, typename ForOneValue<InSteps>::Type, Saturates>(round, scale, format, limit);
  }
};

// Calls body with the maker of the grid's quantizers, which round by `round` and measure by InSteps. Grids of floats
// that saturate, as nearly all do, have fewer steps.
template <typename InSteps, typename Round, typename Body>
FQ_INLINE void with_steps(const Grid& grid, bool fractional, const Round& round, const Body& body) {
  if (grid.is_float && grid.limit == grid.format.qmax) {
    body(FloatQuantizers<Round, InSteps, true>{round, grid.format, grid.limit});
  } else if (grid.is_float) {
    body(FloatQuantizers<Round, InSteps>{round, grid.format, grid.limit});
  } else {
    body(IntegerQuantizers<Round, InSteps>{round, fractional ? 1.0f : 0.0f, grid.qmin, grid.qmax});
  }
}

// The same, by the grid's own arithmetic; Division: Divide or what stands for it.
template <typename Division, typename Round, typename Body>
FQ_INLINE void with_arithmetic(const Grid& grid, bool fractional, const Round& round, const Body& body) {
  if (grid.arithmetic == Arithmetic::kDivide) {
    with_steps<Division>(grid, fractional, round, body);
  } else {
    with_steps<MultiplyByReciprocal>(grid, fractional, round, body);
  }
}

// The same, rounding halves to even whatever the grid's own rounding is.
template <typename Body>
FQ_INLINE void with_half_even_quantizers(const Grid& grid, bool fractional, const Body& body) {
  with_arithmetic<Divide>(grid, fractional, RoundTo<Rounding::kHalfEven>(), body);
}

// The same, by the grid's own rounding.
template <typename Body>
FQ_INLINE void with_quantizers(const Grid& grid, bool fractional, const Body& body) {
  switch (grid.rounding) {
    case Rounding::kHalfEven:
      return with_half_even_quantizers(grid, fractional, body);
    case Rounding::kHalfUp: return with_arithmetic<Divide>(grid, fractional, RoundTo<Rounding::kHalfUp>(), body);
    case Rounding::kHalfAway: return with_arithmetic<Divide>(grid, fractional, RoundTo<Rounding::kHalfAway>(), body);
    case Rounding::kHalfDown: return with_arithmetic<Divide>(grid, fractional, RoundTo<Rounding::kHalfDown>(), body);
    case Rounding::kFloor: return with_arithmetic<Divide>(grid, fractional, RoundTo<Rounding::kFloor>(), body);
    case Rounding::kCeil: return with_arithmetic<Divide>(grid, fractional, RoundTo<Rounding::kCeil>(), body);
    case Rounding::kTruncate: return with_arithmetic<Divide>(grid, fractional, RoundTo<Rounding::kTruncate>(), body);
  }
}

// The same for a GPU: with a fused division for the rounding of every standard, which is what it is right for.
// Zero points that are integers, as nearly all are, have kernels with fewer steps: elements of
// 16 bits come as fast as these can take them. Other roundings are looked up while the kernel runs, and kernels of
// their own would take minutes to compile.
template <typename Body>
void with_device_quantizers(const Grid& grid, bool fractional, const Body& body) {
  const RoundTo<Rounding::kHalfEven> half_even;
  if (grid.rounding != Rounding::kHalfEven) {
    with_arithmetic<Divide>(grid, fractional, RoundToAny{grid.rounding}, body);
  } else if (grid.arithmetic == Arithmetic::kDivide && !grid.is_float && !fractional) {
    body(IntegerQuantizers<RoundTo<Rounding::kHalfEven>, DivideFused, false>{half_even, 0.0f, grid.qmin, grid.qmax});
  } else {
    with_arithmetic<DivideFused>(grid, fractional, half_even, body);
  }
}

}  // namespace onnxfq
