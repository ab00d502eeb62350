// Operator DynamicFakeQuantize: FakeQuantize with scales made from the values of x, block by block.
//
// Inputs: x float, float16 or bfloat16; global_scale float, optional, one element, for scale_type e4m3; enabled
// bool, optional, false copies x and makes scales of 1 and zero points of 0. Outputs: y of x's type; scale float,
// optional; zero_point float, optional, of scale's shape. Attributes: qtype, symmetric, scale_type, axis, block_size,
// block_shape, rounding. Without the three for blocks there is one scale for the tensor.
#pragma once

#include "../dynamic_spec.h"
#include "inputs.h"

namespace onnxfq {

// Definition of the operator for any provider. X: ONNX type of x and y.
template <int X>
class DynamicFakeQuantizeNode {
 public:
  static constexpr const char* kName = "DynamicFakeQuantize";
  static constexpr int kInputTypes[] = {X, ort::kFloat, ort::kBool};
  static constexpr int kOutputTypes[] = {X, ort::kFloat, ort::kFloat};
  static constexpr size_t kRequiredInputs = 1;
  static constexpr size_t kRequiredOutputs = 1;
  static constexpr int kInPlaceInput = 0;

  explicit DynamicFakeQuantizeNode(const ort::Attributes& attributes) {
    reject(spec_.parse(attributes.string("qtype", ""), attributes.string("rounding", "half_even"),
                       attributes.string("scale_type", "float32"), attributes.integer("symmetric", 1),
                       read_blocks(attributes)));
  }

 protected:
  static constexpr ElementType kElement = element_type(X);

  static bool enabled(const ort::Context& context) { return read_enabled(context, 2); }

  // The inputs of a run, checked, and its outputs; scale and zero_point are nullptr when not connected.
  struct Run {
    ParamLayout layout;
    DynamicFakeQuantizeCall call;

    Run() = default;
    Run(const Run&) = delete;  // call points to layout
    Run& operator=(const Run&) = delete;
  };

  void prepare(const ort::Context& context, Run& run) const {
    const ort::Tensor<void> x = context.input<void>(0);
    float global_scale = 0.0f;
    if (context.has_input(1)) {
      const ort::Tensor<float> given = context.input<float>(1);
      if (given.element_count() != 1) {
        reject("global_scale must have one element, got " + std::to_string(given.element_count()));
      }
      global_scale = *given.data;
      reject(spec_.check_global_scale(global_scale));
    }
    std::vector<int64_t> shape;
    reject(spec_.blocks.scale_shape(x.shape, shape));
    reject(run.layout.fit(x.shape, shape, spec_.blocks));
    float* scale = param_output(context, 1, shape);
    float* zero_point = param_output(context, 2, shape);
    void* y = context.output<void>(0, x.shape);
    run.call = {x.data, y, kElement, scale, zero_point, &run.layout, spec_.grid, spec_.rule, global_scale};
  }

  DynamicSpec spec_;

 private:
  static float* param_output(const ort::Context& context, size_t index, const std::vector<int64_t>& shape) {
    return context.has_output(index) ? context.output<float>(index, shape) : nullptr;
  }
};

// One operator for each type; Op<X> is a DynamicFakeQuantizeNode. It must be unique across the
// library: types in anonymous namespaces used as template arguments can collide.
template <template <int> class Op>
std::vector<const OrtCustomOp*> dynamic_fake_quantize_ops_of() {
  static const ort::CustomOp<Op<ort::kFloat>> float32;
  static const ort::CustomOp<Op<ort::kFloat16>> float16;
  static const ort::CustomOp<Op<ort::kBfloat16>> bfloat16;
  return {&float32, &float16, &bfloat16};
}

}  // namespace onnxfq
