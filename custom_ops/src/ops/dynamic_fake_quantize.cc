// DynamicFakeQuantize for the CPU provider.
#include "dynamic_fake_quantize.h"

#include <algorithm>
#include <memory>

#include "ops.h"

namespace onnxfq {
namespace {

template <int X>
class DynamicFakeQuantizeOnCpu : public DynamicFakeQuantizeNode<X> {
 public:
  static constexpr const char* kProvider = ort::kOnCpu;
  static constexpr size_t kFirstHostInput = ort::kNone;

  using DynamicFakeQuantizeNode<X>::DynamicFakeQuantizeNode;

  void run(ort::Context& context) const {
    typename DynamicFakeQuantizeNode<X>::Run run;
    this->prepare(context, run);
    const int64_t count = run.layout.param_count();
    if (!this->enabled(context)) {
      if (run.call.scale) std::fill_n(run.call.scale, count, 1.0f);
      if (run.call.zero_point) std::fill_n(run.call.zero_point, count, 0.0f);
      return copy_input(context, this->kElement);
    }
    std::unique_ptr<float[]> own_scale;
    std::unique_ptr<float[]> own_zero_point;
    if (!run.call.scale) run.call.scale = allocate(own_scale, count);
    if (!run.call.zero_point && !run.call.rule.symmetric) run.call.zero_point = allocate(own_zero_point, count);
    cpu::dynamic_fake_quantize(run.call, context.threads());
  }

 private:
  // Not set to zero, unlike a vector: all of it is written.
  static float* allocate(std::unique_ptr<float[]>& owner, int64_t count) {
    owner.reset(new float[static_cast<size_t>(count)]);
    return owner.get();
  }
};

}  // namespace

std::vector<const OrtCustomOp*> dynamic_fake_quantize_ops() {
  static const ort::CustomOp<Float64Refused<DynamicFakeQuantizeOnCpu<ort::kDouble>>> float64;
  std::vector<const OrtCustomOp*> ops = dynamic_fake_quantize_ops_of<DynamicFakeQuantizeOnCpu>();
  ops.push_back(&float64);
  return ops;
}

}  // namespace onnxfq
