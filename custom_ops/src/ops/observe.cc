// Operator Observe: the statistics of a float tensor, as small tensors.
//
// Input: x float. Attributes: histogram, 0 or 1; channels and channel_block, both or none: x is [N, C', ...] in
// ONNX Runtime's blocked layout, memory [N][C' / channel_block][...][channel_block], of which the first
// `channels` are no padding. Outputs: range float [2], minimum and maximum of the finite values; counts int64
// [4], elements, NaN, infinities, zeros; bins int32 [K], ascending; bin_counts int64 [K].
#include <algorithm>

#include "inputs.h"
#include "onnxfq/ort_kernel.h"
#include "ops.h"

namespace onnxfq {
namespace {

// X: ONNX type of x.
template <int X>
class Observe {
 public:
  static constexpr const char* kName = "Observe";
  static constexpr int kInputTypes[] = {X};
  static constexpr int kOutputTypes[] = {ort::kFloat, ort::kInt64, ort::kInt32, ort::kInt64};
  static constexpr size_t kRequiredInputs = 1;
  static constexpr size_t kRequiredOutputs = 4;
  static constexpr const char* kProvider = ort::kOnCpu;
  static constexpr size_t kFirstHostInput = ort::kNone;
  static constexpr int kInPlaceInput = ort::kNoInput;

  explicit Observe(const ort::Attributes& attributes) {
    const int64_t histogram = attributes.integer("histogram", 1);
    if (histogram != 0 && histogram != 1) {
      throw ort::UserError("histogram must be 0 or 1, got " + std::to_string(histogram));
    }
    histogram_ = histogram == 1;
    channels_ = attributes.integer("channels", 0);
    channel_block_ = attributes.integer("channel_block", 0);
    const bool blocked = channels_ > 0 && channel_block_ > 0 && channel_block_ <= kMostLanes;
    if (!blocked && (channels_ != 0 || channel_block_ != 0)) {
      throw ort::UserError("channels and channel_block go together, both positive, channel_block at most " +
                           std::to_string(kMostLanes) + "; got " + std::to_string(channels_) + " and " +
                           std::to_string(channel_block_));
    }
  }

  void run(ort::Context& context) const {
    const ort::Tensor<float> x = context.input<float>(0);
    cpu::ObserveCall call{x.data, x.element_count(), histogram_};
    if (channel_block_ > 0) set_layout(x.shape, call);
    const Statistics statistics = cpu::observe(call, context.threads());
    float* range = context.output<float>(0, {2});
    int64_t* counts = context.output<int64_t>(1, {4});
    const int64_t used = static_cast<int64_t>(statistics.bins.size());
    int32_t* bins = context.output<int32_t>(2, {used});
    int64_t* bin_counts = context.output<int64_t>(3, {used});
    statistics.summary.write(range, counts);
    std::copy(statistics.bins.begin(), statistics.bins.end(), bins);
    std::copy(statistics.bin_counts.begin(), statistics.bin_counts.end(), bin_counts);
  }

 private:
  static constexpr int64_t kMostLanes = 64;

  void set_layout(const std::vector<int64_t>& shape, cpu::ObserveCall& call) const {
    const int64_t blocks = (channels_ + channel_block_ - 1) / channel_block_;
    if (shape.size() < 2 || shape[1] != blocks * channel_block_) {
      throw ort::UserError("x has " + (shape.size() < 2 ? "no channels" : std::to_string(shape[1]) + " channels") +
                           ", " + std::to_string(channels_) + " in blocks of " + std::to_string(channel_block_) +
                           " are " + std::to_string(blocks * channel_block_));
    }
    call.block = channel_block_;
    call.planes_per_image = blocks;
    call.plane = channel_block_;
    for (size_t d = 2; d < shape.size(); ++d) call.plane *= shape[d];
    call.valid = channels_ - (blocks - 1) * channel_block_;
  }

  bool histogram_ = true;
  int64_t channels_ = 0;
  int64_t channel_block_ = 0;
};

}  // namespace

std::vector<const OrtCustomOp*> observe_ops() {
  static const ort::CustomOp<Observe<ort::kFloat>> op;
  static const ort::CustomOp<Float64Refused<Observe<ort::kDouble>>> float64;
  return {&op, &float64};
}

}  // namespace onnxfq
