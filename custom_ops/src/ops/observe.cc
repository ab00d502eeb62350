// Operator Observe: the statistics of a float tensor, as small tensors.
//
// Input: x float, float16 or bfloat16, whose values count as the float32 numbers that they are. Attributes:
// histogram, 0 or 1; channel_ranges, 0 or 1; channels and channel_block, both or none: x is float, [N, C', ...] in ONNX Runtime's blocked
// layout, memory [N][C' / channel_block][...][channel_block], of which the first `channels` are not padding; axis,
// block_size and block_shape as FakeQuantize takes them: statistics of each group that would share a scale. In the
// blocked layout the groups are the channels, axis 1.
// Outputs: range float [2], minimum and maximum of the finite values; counts int64
// [4], elements, NaN, infinities, zeros; bins int32 [K], ascending; bin_counts int64 [K]. For G groups: range [G, 2],
// counts [G, 4], bins g * 32768 + bin. With channel_ranges, of x as a whole, a fifth one: the range of each channel,
// axis 1, float [C, 2].
#include <algorithm>
#include <limits>

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
  static constexpr int kOutputTypes[] = {ort::kFloat, ort::kInt64, ort::kInt32, ort::kInt64, ort::kFloat};
  static constexpr size_t kRequiredInputs = 1;
  static constexpr size_t kRequiredOutputs = 4;
  static constexpr const char* kProvider = ort::kOnCpu;
  static constexpr size_t kFirstHostInput = ort::kNone;
  static constexpr int kInPlaceInput = ort::kNoInput;

  explicit Observe(const ort::Attributes& attributes) {
    histogram_ = flag(attributes, "histogram", 1);
    channel_ranges_ = flag(attributes, "channel_ranges", 0);
    channels_ = attributes.integer("channels", 0);
    channel_block_ = attributes.integer("channel_block", 0);
    const bool blocked = channels_ > 0 && channels_ <= std::numeric_limits<int64_t>::max() - kMostLanes &&
                         channel_block_ > 0 && channel_block_ <= kMostLanes;
    if (!blocked && (channels_ != 0 || channel_block_ != 0)) {
      throw ort::UserError("channels and channel_block go together, both positive, channel_block at most " +
                           std::to_string(kMostLanes) + "; got " + std::to_string(channels_) + " and " +
                           std::to_string(channel_block_));
    }
    if (blocked && kElement != ElementType::kFloat32) {
      throw ort::UserError("channels and channel_block are for x of type float; leave them out");
    }
    blocks_ = read_blocks(attributes);
    by_groups_ = blocks_.axis_given || blocks_.size != 0 || !blocks_.shape.empty();
    reject(blocks_.check());
    if (blocked && by_groups_ && (blocks_.axis != 1 || blocks_.size != 0 || !blocks_.shape.empty())) {
      throw ort::UserError("groups of x in blocks of channels are its channels; give axis 1 alone");
    }
    if (channel_ranges_ && by_groups_) {
      throw ort::UserError("channel_ranges are of x as a whole; leave axis, block_size and block_shape out");
    }
    if (channel_ranges_ && blocked && kMostRangedLanes % channel_block_ != 0) {
      throw ort::UserError("channel_ranges want a channel_block that divides " + std::to_string(kMostRangedLanes) +
                           ", got " + std::to_string(channel_block_));
    }
  }

  void run(ort::Context& context) const {
    const ort::Tensor<void> x = context.input<void>(0);
    by_groups_ ? run_by_groups(context, x) : run_as_one(context, x);
  }

 private:
  static constexpr ElementType kElement = element_type(X);
  static constexpr int64_t kMostLanes = 64;
  static constexpr int64_t kMostRangedLanes = 16;

  static bool flag(const ort::Attributes& attributes, const char* name, int64_t otherwise) {
    const int64_t value = attributes.integer(name, otherwise);
    if (value != 0 && value != 1) {
      throw ort::UserError(std::string(name) + " must be 0 or 1, got " + std::to_string(value));
    }
    return value == 1;
  }

  void run_as_one(ort::Context& context, const ort::Tensor<void>& x) const {
    cpu::ObserveCall call{x.data, x.element_count(), histogram_};
    call.type = kElement;
    if (channel_block_ > 0) set_layout(x.shape, call);
    if (channel_ranges_) set_channels(x.shape, call);
    const Statistics statistics = cpu::observe(call, context.threads());
    float* range = context.output<float>(0, {2});
    int64_t* counts = context.output<int64_t>(1, {4});
    const int64_t used = static_cast<int64_t>(statistics.bins.size());
    int32_t* bins = context.output<int32_t>(2, {used});
    int64_t* bin_counts = context.output<int64_t>(3, {used});
    statistics.summary.write(range, counts);
    std::copy(statistics.bins.begin(), statistics.bins.end(), bins);
    std::copy(statistics.bin_counts.begin(), statistics.bin_counts.end(), bin_counts);
    if (!channel_ranges_) return;
    float* ranges = context.output<float>(4, {call.channels, 2});
    for (const Range& one : statistics.channels) {
      one.write(ranges);
      ranges += 2;
    }
  }

  void run_by_groups(ort::Context& context, const ort::Tensor<void>& x) const {
    std::vector<int64_t> shape;
    ParamLayout layout;
    if (channel_block_ > 0) {
      const int64_t blocks = channel_blocks(x.shape);
      const int64_t plane = ort::element_count(x.shape, 2);
      Blocks lanes;
      lanes.shape = {-1, 1, -1, 1};
      reject(layout.fit({x.shape[0], blocks, plane, channel_block_}, {1, blocks, 1, channel_block_}, lanes));
      shape = {channels_};
    } else {
      reject(blocks_.scale_shape(x.shape, shape));
      reject(layout.fit(x.shape, shape, blocks_));
    }
    const int64_t groups = ort::element_count(shape);
    if (groups > kMostGroups) {
      reject("x has " + std::to_string(groups) + " groups, " + std::to_string(kMostGroups) +
             " are the most; give larger blocks");
    }
    const GroupStatistics found =
        cpu::observe_groups({x.data, kElement, &layout, groups, histogram_}, context.threads());
    float* range = context.output<float>(0, {groups, 2});
    int64_t* counts = context.output<int64_t>(1, {groups, 4});
    const int64_t used = static_cast<int64_t>(found.keys.size());
    int32_t* bins = context.output<int32_t>(2, {used});
    int64_t* bin_counts = context.output<int64_t>(3, {used});
    for (const Summary& summary : found.summaries) {
      summary.write(range, counts);
      range += 2;
      counts += 4;
    }
    std::copy(found.keys.begin(), found.keys.end(), bins);
    std::copy(found.counts.begin(), found.counts.end(), bin_counts);
  }

  // Checks that x has the channels and returns how many blocks they fill.
  int64_t channel_blocks(const std::vector<int64_t>& shape) const {
    const int64_t blocks = (channels_ + channel_block_ - 1) / channel_block_;
    if (shape.size() < 2 || shape[1] != blocks * channel_block_) {
      throw ort::UserError("x has " + (shape.size() < 2 ? "no channels" : std::to_string(shape[1]) + " channels") +
                           ", " + std::to_string(channels_) + " in blocks of " + std::to_string(channel_block_) +
                           " are " + std::to_string(blocks * channel_block_));
    }
    return blocks;
  }

  void set_layout(const std::vector<int64_t>& shape, cpu::ObserveCall& call) const {
    const int64_t blocks = channel_blocks(shape);
    call.block = channel_block_;
    call.planes_per_image = blocks;
    std::vector<int64_t> plane = shape;
    plane[1] = channel_block_;
    call.plane = ort::element_count(plane, 1);
    call.valid = channels_ - (blocks - 1) * channel_block_;
  }

  void set_channels(const std::vector<int64_t>& shape, cpu::ObserveCall& call) const {
    if (channel_block_ > 0) {
      call.channels = channels_;
      return;
    }
    if (shape.size() < 2) throw ort::UserError("channel_ranges want an x with channels, axis 1");
    call.channels = call.planes_per_image = shape[1];
    call.plane = ort::element_count(shape, 2);
  }

  bool histogram_ = true;
  bool channel_ranges_ = false;
  int64_t channels_ = 0;
  int64_t channel_block_ = 0;
  Blocks blocks_;
  bool by_groups_ = false;
};

}  // namespace

std::vector<const OrtCustomOp*> observe_ops() {
  static const ort::CustomOp<Observe<ort::kFloat>> float32;
  static const ort::CustomOp<Observe<ort::kFloat16>> float16;
  static const ort::CustomOp<Observe<ort::kBfloat16>> bfloat16;
  static const ort::CustomOp<Float64Refused<Observe<ort::kDouble>>> float64;
  return {&float32, &float16, &bfloat16, &float64};
}

}  // namespace onnxfq
