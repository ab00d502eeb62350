// The operators for the CUDA provider.
//
// Scales, zero points, global scale and `enabled` are read in the host's memory, where ONNX Runtime keeps them: so
// they are checked without waiting for the GPU. One scale goes along with the launch. More, when they are constants,
// as they are after calibration, are copied to the device at the first run; otherwise at every run.
#include <cuda_runtime.h>

#include <memory>
#include <mutex>

#include "../cuda/device_params.h"
#include "dynamic_fake_quantize.h"
#include "fake_quantize.h"
#include "merge_statistics.h"
#include "ops.h"

namespace onnxfq {
namespace {

void copy_on_device(void* to, const void* from, size_t bytes, void* stream) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::as_stream(stream)), "copy a tensor");
}

template <int X, int P>
class FakeQuantizeOnCuda : public FakeQuantizeNode<X, P> {
 public:
  static constexpr const char* kProvider = ort::kOnCuda;
  static constexpr size_t kFirstHostInput = 1;

  explicit FakeQuantizeOnCuda(const ort::Attributes& attributes)
      : FakeQuantizeNode<X, P>(attributes),
        kept_(new Kept),
        constant_scale_(attributes.constant_input(1)),
        constant_zero_point_(attributes.constant_input(2)) {}

  void run(ort::Context& context) const {
    const ort::Tensor<void> x = context.input<void>(0);
    void* const stream = context.stream();
    if (!this->enabled(context)) {
      void* y = context.output<void>(0, x.shape);
      const size_t bytes = static_cast<size_t>(x.element_count()) * element_size(this->kElement);
      if (y != x.data && bytes > 0) copy_on_device(y, x.data, bytes, stream);
      return;
    }
    const std::shared_ptr<const Loaded> params = loaded(context, stream);
    const ParamLayout layout = this->layout(x.shape, params->shape);
    void* y = context.output<void>(0, x.shape);
    const FakeQuantizeCall call{x.data,
                                y,
                                this->kElement,
                                &params->scale,
                                &params->zero_point,
                                &layout,
                                this->spec_.grid,
                                params->fractional};
    cuda::fake_quantize(call, params->many ? &params->many->get() : nullptr, stream);
  }

 private:
  // Parameters that were checked: a single one, or many on the device.
  struct Loaded {
    std::vector<int64_t> shape;
    bool fractional = false;
    float scale = 1.0f;
    float zero_point = 0.0f;
    std::unique_ptr<cuda::DeviceParams> many;
  };

  struct Kept {
    std::mutex mutex;
    std::shared_ptr<const Loaded> params;
  };

  std::shared_ptr<const Loaded> loaded(const ort::Context& context, void* stream) const {
    const bool constant = constant_scale_ && (constant_zero_point_ || !context.has_input(2));
    if (!constant) return load(context, cuda::DeviceParams::Life::kOneCall, stream);
    std::lock_guard<std::mutex> lock(kept_->mutex);
    if (!kept_->params) kept_->params = load(context, cuda::DeviceParams::Life::kLasting, stream);
    return kept_->params;
  }

  std::shared_ptr<const Loaded> load(const ort::Context& context, cuda::DeviceParams::Life life, void* stream) const {
    const auto given = this->params(context);
    const float* const zero_point = given.zero_point.data();
    const int64_t count = given.scale.count();
    auto result = std::make_shared<Loaded>();
    result->shape = given.scale.shape();
    result->fractional = FakeQuantizeSpec::any_fraction(zero_point, count);
    if (count == 1) {
      result->scale = given.scale.data()[0];
      result->zero_point = zero_point ? zero_point[0] : 0.0f;
    } else if (count > 1) {
      result->many = std::make_unique<cuda::DeviceParams>(given.scale.data(), zero_point, count, life, stream);
    }
    return result;
  }

  std::unique_ptr<Kept> kept_;
  bool constant_scale_;
  bool constant_zero_point_;
};

template <int X>
class DynamicFakeQuantizeOnCuda : public DynamicFakeQuantizeNode<X> {
 public:
  static constexpr const char* kProvider = ort::kOnCuda;
  static constexpr size_t kFirstHostInput = 1;

  using DynamicFakeQuantizeNode<X>::DynamicFakeQuantizeNode;

  void run(ort::Context& context) const {
    typename DynamicFakeQuantizeNode<X>::Run run;
    this->prepare(context, run);
    if (!this->enabled(context)) return switched_off(run.call, context.stream());
    cuda::dynamic_fake_quantize(run.call, context.stream());
  }

 private:
  static void switched_off(const DynamicFakeQuantizeCall& call, void* stream) {
    const size_t count = static_cast<size_t>(call.layout->param_count());
    const std::vector<float> ones(count, 1.0f);
    if (call.scale && count > 0) {
      cuda::check(cudaMemcpyAsync(call.scale, ones.data(), count * sizeof(float), cudaMemcpyHostToDevice,
                                  cuda::as_stream(stream)),
                  "write scales");
    }
    if (call.zero_point && count > 0) {
      cuda::check(cudaMemsetAsync(call.zero_point, 0, count * sizeof(float), cuda::as_stream(stream)),
                  "write zero points");
    }
    const size_t bytes = static_cast<size_t>(call.layout->element_count()) * element_size(call.type);
    if (call.y != call.x && bytes > 0) copy_on_device(call.y, call.x, bytes, stream);
  }
};

template <int X>
class MergeStatisticsOnCuda : public MergeStatisticsNode<X> {
 public:
  static constexpr const char* kProvider = ort::kOnCuda;

  using MergeStatisticsNode<X>::MergeStatisticsNode;

  void run(ort::Context& context) const {
    void* const stream = context.stream();
    typename MergeStatisticsNode<X>::Run run;
    this->prepare(
        context,
        [stream](int64_t* to, const int64_t* from, size_t bytes) { copy_on_device(to, from, bytes, stream); }, run);
    cuda::merge_statistics(run.call, stream);
  }
};

}  // namespace

std::vector<const OrtCustomOp*> cuda_ops() {
  std::vector<const OrtCustomOp*> ops = fake_quantize_ops_of<FakeQuantizeOnCuda>();
  for (const auto& more : {dynamic_fake_quantize_ops_of<DynamicFakeQuantizeOnCuda>(),
                           merge_statistics_ops_of<MergeStatisticsOnCuda>()}) {
    ops.insert(ops.end(), more.begin(), more.end());
  }
  return ops;
}

}  // namespace onnxfq
