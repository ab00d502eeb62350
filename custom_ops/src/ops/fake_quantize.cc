// FakeQuantize for the CPU provider.
#include "fake_quantize.h"

#include <cstring>

#include "ops.h"

namespace onnxfq {
namespace {

template <int X, int P>
class FakeQuantize : public FakeQuantizeNode<X, P> {
 public:
  static constexpr const char* kProvider = ort::kOnCpu;
  static constexpr size_t kFirstHostInput = ort::kNone;

  using FakeQuantizeNode<X, P>::FakeQuantizeNode;

  void run(ort::Context& context) const {
    const ort::Tensor<void> x = context.input<void>(0);
    if (!this->enabled(context)) {
      void* y = context.output<void>(0, x.shape);
      const int64_t count = x.element_count();
      if (y != x.data && count > 0) std::memcpy(y, x.data, static_cast<size_t>(count) * element_size(this->kElement));
      return;
    }
    const auto params = this->params(context);
    const ParamLayout layout = this->layout(x.shape, params.scale.shape());
    void* y = context.output<void>(0, x.shape);
    cpu::fake_quantize(
        this->spec_.call(x.data, y, this->kElement, params.scale.data(), params.zero_point.data(), layout),
        context.threads());
  }
};

}  // namespace

std::vector<const OrtCustomOp*> fake_quantize_ops() { return fake_quantize_ops_of<FakeQuantize>(); }

}  // namespace onnxfq
