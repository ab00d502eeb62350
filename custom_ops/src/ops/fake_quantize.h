// Operator FakeQuantize: rounds a float tensor to the grid of a number format and returns floats.
//
// Inputs: x float, float16 or bfloat16; scale float or of x's type; zero_point, optional, of scale's type, one
// for each scale; enabled bool, optional, false copies x. Output: y of x's type. Attributes: qtype, axis,
// block_size, block_shape, rounding, arithmetic, saturate.
#pragma once

#include "../fake_quantize_spec.h"
#include "inputs.h"

namespace onnxfq {

// Definition of the operator for any provider. X, P: ONNX types of x and y, and of scale and zero_point.
template <int X, int P>
class FakeQuantizeNode {
 public:
  static constexpr const char* kName = "FakeQuantize";
  static constexpr int kInputTypes[] = {X, P, P, ort::kBool};
  static constexpr int kOutputTypes[] = {X};
  static constexpr size_t kRequiredInputs = 2;
  static constexpr size_t kRequiredOutputs = 1;
  static constexpr int kInPlaceInput = 0;

  explicit FakeQuantizeNode(const ort::Attributes& attributes) {
    reject(spec_.parse(attributes.string("qtype", ""), attributes.string("rounding", "half_even"),
                       attributes.string("arithmetic", "divide"), attributes.integer("saturate", 1),
                       read_blocks(attributes)));
  }

 protected:
  static constexpr ElementType kElement = element_type(X);

  // The parameters of a run, checked.
  struct Given {
    FloatInput scale;
    FloatInput zero_point;
  };

  static bool enabled(const ort::Context& context) { return read_enabled(context, 3); }

  Given params(const ort::Context& context) const {
    Given given{FloatInput(context, 1, element_type(P)), FloatInput()};
    if (context.has_input(2)) {
      given.zero_point = FloatInput(context, 2, element_type(P));
      if (given.zero_point.count() != given.scale.count()) {
        reject("zero_point has " + std::to_string(given.zero_point.count()) + " elements and scale " +
               std::to_string(given.scale.count()) + "; give one for each scale");
      }
    }
    reject(spec_.check(given.scale.data(), given.zero_point.data(), given.scale.count()));
    return given;
  }

  ParamLayout layout(const std::vector<int64_t>& x_shape, const std::vector<int64_t>& scale_shape) const {
    ParamLayout fitted;
    reject(fitted.fit(x_shape, scale_shape, spec_.blocks));
    return fitted;
  }

  FakeQuantizeSpec spec_;
};

// One operator for each combination of types; Op<X, P> is a FakeQuantizeNode. It must be unique across the
// library: types in anonymous namespaces used as template arguments can collide.
template <template <int, int> class Op>
std::vector<const OrtCustomOp*> fake_quantize_ops_of() {
  using namespace ort;
  static const CustomOp<Op<kFloat, kFloat>> float32;
  static const CustomOp<Op<kFloat16, kFloat>> float16;
  static const CustomOp<Op<kFloat16, kFloat16>> float16_params;
  static const CustomOp<Op<kBfloat16, kFloat>> bfloat16;
  static const CustomOp<Op<kBfloat16, kBfloat16>> bfloat16_params;
  return {&float32, &float16, &float16_params, &bfloat16, &bfloat16_params};
}

}  // namespace onnxfq
