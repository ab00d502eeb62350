// Operator FakeQuantize: rounds a float tensor to the grid of a number format and returns floats.
//
// Inputs: x float, float16 or bfloat16; scale float or of x's type; zero_point, optional, of scale's type, one
// for each scale; enabled bool, optional, false copies x. Output: y of x's type. Attributes: qtype, axis,
// block_size, block_shape, rounding, arithmetic, saturate.
#include "../fake_quantize_spec.h"
#include "inputs.h"
#include "ops.h"

namespace onnxfq {
namespace {

// X, P: ONNX types of x and y, and of scale and zero_point.
template <int X, int P>
class FakeQuantize {
 public:
  static constexpr const char* kName = "FakeQuantize";
  static constexpr int kInputTypes[] = {X, P, P, ort::kBool};
  static constexpr int kOutputTypes[] = {X};
  static constexpr size_t kRequiredInputs = 2;
  static constexpr size_t kRequiredOutputs = 1;
  static constexpr bool kInPlace = true;

  explicit FakeQuantize(const ort::Attributes& attributes) {
    reject(spec_.parse(attributes.string("qtype", ""), attributes.string("rounding", "half_even"),
                       attributes.string("arithmetic", "divide"), attributes.integer("saturate", 1),
                       read_blocks(attributes)));
  }

  void run(ort::Context& context) const {
    const ort::Tensor<void> x = context.input<void>(0);
    if (!read_enabled(context, 3)) return copy_input(context, kElement);
    const FloatInput scale(context, 1, element_type(P));
    FloatInput zero_point;
    if (context.has_input(2)) {
      zero_point = FloatInput(context, 2, element_type(P));
      if (zero_point.count() != scale.count()) {
        reject("zero_point has " + std::to_string(zero_point.count()) + " elements and scale " +
               std::to_string(scale.count()) + "; give one for each scale");
      }
    }
    ParamLayout layout;
    reject(layout.fit(x.shape, scale.shape(), spec_.blocks));
    reject(spec_.check(scale.data(), zero_point.data(), layout.param_count()));
    void* y = context.output<void>(0, x.shape);
    cpu::fake_quantize(spec_.call(x.data, y, kElement, scale.data(), zero_point.data(), layout), context.threads());
  }

 private:
  static constexpr ElementType kElement = element_type(X);

  FakeQuantizeSpec spec_;
};

template <typename Op>
const OrtCustomOp* op() {
  static const ort::CustomOp<Op> made;
  return &made;
}

}  // namespace

std::vector<const OrtCustomOp*> fake_quantize_ops() {
  using namespace ort;
  return {op<FakeQuantize<kFloat, kFloat>>(),
          op<FakeQuantize<kFloat16, kFloat>>(),
          op<FakeQuantize<kFloat16, kFloat16>>(),
          op<FakeQuantize<kBfloat16, kFloat>>(),
          op<FakeQuantize<kBfloat16, kBfloat16>>(),
          op<Float64Refused<FakeQuantize<kDouble, kFloat>>>(),
          op<Float64Refused<FakeQuantize<kDouble, kDouble>>>()};
}

}  // namespace onnxfq
