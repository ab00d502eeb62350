// FakeQuantize for the CPU provider.
#include "fake_quantize.h"

#include "ops.h"

namespace onnxfq {
namespace {

template <int X, int P>
class FakeQuantizeOnCpu : public FakeQuantizeNode<X, P> {
 public:
  static constexpr const char* kProvider = ort::kOnCpu;
  static constexpr size_t kFirstHostInput = ort::kNone;

  using FakeQuantizeNode<X, P>::FakeQuantizeNode;

  void run(ort::Context& context) const {
    const ort::Tensor<void> x = context.input<void>(0);
    if (!this->enabled(context)) return copy_input(context, this->kElement);
    const auto params = this->params(context);
    const ParamLayout layout = this->layout(x.shape, params.scale.shape());
    void* y = context.output<void>(0, x.shape);
    cpu::fake_quantize(
        this->spec_.call(x.data, y, this->kElement, params.scale.data(), params.zero_point.data(), layout),
        context.threads());
  }
};

}  // namespace

std::vector<const OrtCustomOp*> fake_quantize_ops() {
  using namespace ort;
  static const CustomOp<Float64Refused<FakeQuantizeOnCpu<kDouble, kFloat>>> float64;
  static const CustomOp<Float64Refused<FakeQuantizeOnCpu<kDouble, kDouble>>> float64_params;
  std::vector<const OrtCustomOp*> ops = fake_quantize_ops_of<FakeQuantizeOnCpu>();
  ops.insert(ops.end(), {&float64, &float64_params});
  return ops;
}

}  // namespace onnxfq
