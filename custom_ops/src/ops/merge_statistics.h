// Operator MergeStatistics: adds the statistics of a float tensor to a state of earlier ones.
//
// Inputs: x float, float16 or bfloat16; state int64 [8] without or [8 + 32768] with a histogram. Output: state of the
// same shape, in whose memory it may lie. The first numbers of state: order keys of minimum and maximum, elements,
// NaN, infinities, zeros, two that are free; then the counts of all bins, see statistics.h. Attributes axis, block_size
// and block_shape as FakeQuantize takes them: a state for each group that would share a scale, [G, 8] or [G, 8 + 32768].
#pragma once

#include "inputs.h"

namespace onnxfq {

// Definition of the operator for any provider. X: ONNX type of x.
template <int X>
class MergeStatisticsNode {
 public:
  static constexpr const char* kName = "MergeStatistics";
  static constexpr int kInputTypes[] = {X, ort::kInt64};
  static constexpr int kOutputTypes[] = {ort::kInt64};
  static constexpr size_t kRequiredInputs = 2;
  static constexpr size_t kRequiredOutputs = 1;
  static constexpr size_t kFirstHostInput = ort::kNone;
  static constexpr int kInPlaceInput = 1;

  explicit MergeStatisticsNode(const ort::Attributes& attributes) : blocks_(read_blocks(attributes)) {
    by_groups_ = blocks_.axis_given || blocks_.size != 0 || !blocks_.shape.empty();
    reject(blocks_.check());
  }

 protected:
  // The inputs of a run, checked, and its output.
  struct Run {
    ParamLayout groups;
    MergeStatisticsCall call;

    Run() = default;
    Run(const Run&) = delete;  // call points to groups
    Run& operator=(const Run&) = delete;
  };

  // Copies the state by copy(to, from, bytes) where it does not stay in its place.
  template <typename Copy>
  void prepare(const ort::Context& context, const Copy& copy, Run& run) const {
    const ort::Tensor<void> x = context.input<void>(0);
    const ort::Tensor<int64_t> state = context.input<int64_t>(1);
    const size_t rank = by_groups_ ? 2 : 1;
    int64_t groups = 1;
    if (by_groups_) {
      std::vector<int64_t> shape;
      reject(blocks_.scale_shape(x.shape, shape));
      reject(run.groups.fit(x.shape, shape, blocks_));
      groups = run.groups.param_count();
      if (groups > kMostGroups) {
        reject("x has " + std::to_string(groups) + " groups, " + std::to_string(kMostGroups) +
               " are the most; give larger blocks");
      }
    }
    const int64_t size = state.shape.empty() ? 0 : state.shape.back();
    const bool sized = size == kStateHeader || size == kStateSize;
    if (state.shape.size() != rank || !sized || state.element_count() != groups * size) {
      const std::string before = by_groups_ ? std::to_string(groups) + ", " : "";
      reject("state must have shape [" + before + std::to_string(kStateHeader) + "] or, with a histogram, [" + before +
             std::to_string(kStateSize) + "], got rank " + std::to_string(state.shape.size()) + " with " +
             std::to_string(state.element_count()) + " elements");
    }
    int64_t* merged = context.output<int64_t>(0, state.shape);
    const size_t bytes = static_cast<size_t>(state.element_count()) * sizeof(int64_t);
    if (merged != state.data && bytes > 0) copy(merged, state.data, bytes);
    run.call = {x.data, element_type(X), x.element_count(), merged, size == kStateSize,
                by_groups_ ? &run.groups : nullptr};
  }

 private:
  Blocks blocks_;
  bool by_groups_ = false;
};

// One operator for each type; Op<X> is a MergeStatisticsNode. It must be unique across the
// library: types in anonymous namespaces used as template arguments can collide.
template <template <int> class Op>
std::vector<const OrtCustomOp*> merge_statistics_ops_of() {
  static const ort::CustomOp<Op<ort::kFloat>> float32;
  static const ort::CustomOp<Op<ort::kFloat16>> float16;
  static const ort::CustomOp<Op<ort::kBfloat16>> bfloat16;
  return {&float32, &float16, &bfloat16};
}

}  // namespace onnxfq
