// Operator FakeQuantize: rounds a float tensor to an integer grid and returns floats.
//
// Inputs: x float; scale float; zero_point float, optional, integer-valued, one for each scale; enabled
// bool, optional, false copies x. Attributes: qtype, axis, block_size, rounding, arithmetic.
#include <cstring>

#include "../fake_quantize_spec.h"
#include "onnxfq/ort_kernel.h"
#include "ops.h"

namespace onnxfq {
namespace {

void reject(const std::string& problem) {
  if (!problem.empty()) throw ort::UserError(problem);
}

class FakeQuantize {
 public:
  static constexpr const char* kName = "FakeQuantize";
  static constexpr int kInputTypes[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kBool};
  static constexpr int kOutputTypes[] = {ort::kFloat};
  static constexpr size_t kRequiredInputs = 2;
  static constexpr bool kInPlace = true;

  explicit FakeQuantize(const ort::Attributes& attributes) {
    reject(spec_.parse(attributes.string("qtype", ""), attributes.string("rounding", "half_even"),
                       attributes.string("arithmetic", "divide"), attributes.integer("axis", 1),
                       attributes.integer("block_size", 0)));
  }

  void run(ort::Context& context) const {
    const ort::Tensor<float> x = context.input<float>(0);
    if (!enabled(context)) {
      float* y = context.output<float>(0, x.shape);
      const int64_t count = x.element_count();
      if (y != x.data && count > 0) std::memcpy(y, x.data, static_cast<size_t>(count) * sizeof(float));
      return;
    }
    const ort::Tensor<float> scale = context.input<float>(1);
    ort::Tensor<float> zero_point;
    if (context.has_input(2)) {
      zero_point = context.input<float>(2);
      if (zero_point.element_count() != scale.element_count()) {
        reject("zero_point has " + std::to_string(zero_point.element_count()) + " elements and scale " +
               std::to_string(scale.element_count()) + "; give one for each scale");
      }
    }
    ParamLayout layout;
    reject(layout.fit(x.shape, scale.shape, spec_.axis, spec_.block_size));
    reject(spec_.check(scale.data, zero_point.data, layout.param_count()));
    float* y = context.output<float>(0, x.shape);
    cpu::fake_quantize(spec_.call(x.data, y, scale.data, zero_point.data, layout), context.threads());
  }

 private:
  static bool enabled(const ort::Context& context) {
    if (!context.has_input(3)) return true;
    const ort::Tensor<bool> flag = context.input<bool>(3);
    if (flag.element_count() != 1) {
      reject("enabled must have one element, got " + std::to_string(flag.element_count()));
    }
    return *flag.data;
  }

  FakeQuantizeSpec spec_;
};

}  // namespace

const OrtCustomOp* fake_quantize_op() {
  static const ort::CustomOp<FakeQuantize> op;
  return &op;
}

}  // namespace onnxfq
