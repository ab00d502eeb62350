// Operator DynamicFakeQuantize: FakeQuantize with scales made from the values of x, block by block.
//
// Inputs: x float, float16 or bfloat16; global_scale float, optional, one element, for scale_type e4m3; enabled
// bool, optional, false copies x and makes scales of 1 and zero points of 0. Outputs: y of x's type; scale float, optional; zero_point float, optional, of scale's shape. Attributes:
// qtype, symmetric, scale_type, axis, block_size, block_shape, rounding. Without the three for blocks there is
// one scale for the tensor.
#include <algorithm>
#include <memory>

#include "../dynamic_spec.h"
#include "inputs.h"
#include "ops.h"

namespace onnxfq {
namespace {

// X: ONNX type of x and y.
template <int X>
class DynamicFakeQuantize {
 public:
  static constexpr const char* kName = "DynamicFakeQuantize";
  static constexpr int kInputTypes[] = {X, ort::kFloat, ort::kBool};
  static constexpr int kOutputTypes[] = {X, ort::kFloat, ort::kFloat};
  static constexpr size_t kRequiredInputs = 1;
  static constexpr size_t kRequiredOutputs = 1;
  static constexpr bool kInPlace = true;

  explicit DynamicFakeQuantize(const ort::Attributes& attributes) {
    reject(spec_.parse(attributes.string("qtype", ""), attributes.string("rounding", "half_even"),
                       attributes.string("scale_type", "float32"), attributes.integer("symmetric", 1),
                       read_blocks(attributes)));
  }

  void run(ort::Context& context) const {
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
    const bool enabled = read_enabled(context, 2);
    std::vector<int64_t> shape;
    reject(spec_.blocks.scale_shape(x.shape, shape));
    ParamLayout layout;
    reject(layout.fit(x.shape, shape, spec_.blocks));
    std::unique_ptr<float[]> own_scale;
    std::unique_ptr<float[]> own_zero_point;
    float* scale = param_output(context, 1, shape);
    if (!enabled) {
      if (scale) std::fill_n(scale, layout.param_count(), 1.0f);
      if (float* zero_point = param_output(context, 2, shape)) std::fill_n(zero_point, layout.param_count(), 0.0f);
      return copy_input(context, element_type(X));
    }
    if (!scale) scale = allocate(own_scale, layout.param_count());
    float* zero_point = param_output(context, 2, shape);
    if (!zero_point && !spec_.rule.symmetric) zero_point = allocate(own_zero_point, layout.param_count());
    void* y = context.output<void>(0, x.shape);
    cpu::dynamic_fake_quantize(
        {x.data, y, element_type(X), scale, zero_point, &layout, spec_.grid, spec_.rule, global_scale},
        context.threads());
  }

 private:
  // nullptr when the output is not connected.
  static float* param_output(const ort::Context& context, size_t index, const std::vector<int64_t>& shape) {
    return context.has_output(index) ? context.output<float>(index, shape) : nullptr;
  }

  // Not set to zero, unlike a vector: all of it is written.
  static float* allocate(std::unique_ptr<float[]>& owner, int64_t count) {
    owner.reset(new float[static_cast<size_t>(count)]);
    return owner.get();
  }

  DynamicSpec spec_;
};

template <typename Op>
const OrtCustomOp* op() {
  static const ort::CustomOp<Op> made;
  return &made;
}

}  // namespace

std::vector<const OrtCustomOp*> dynamic_fake_quantize_ops() {
  using namespace ort;
  return {op<DynamicFakeQuantize<kFloat>>(), op<DynamicFakeQuantize<kFloat16>>(), op<DynamicFakeQuantize<kBfloat16>>(),
          op<Float64Refused<DynamicFakeQuantize<kDouble>>>()};
}

}  // namespace onnxfq
