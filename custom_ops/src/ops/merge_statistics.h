// Operator MergeStatistics: adds the statistics of a float tensor to those of earlier ones.
//
// Inputs: x float, float16 or bfloat16; state int64 [8] without or [8 + 32768] with a histogram. Output: state of the
// same shape, in whose memory it may lie. The first numbers of state: order keys of minimum and maximum, elements,
// NaN, infinities, zeros, two that are free; then the counts of all bins, see statistics.h.
#pragma once

#include "inputs.h"

namespace onnxfq {

// What the operator is on any provider. X: ONNX type of x.
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

  explicit MergeStatisticsNode(const ort::Attributes& attributes) {
    const Blocks blocks = read_blocks(attributes);
    if (blocks.axis_given || blocks.size != 0 || !blocks.shape.empty()) {
      reject("a state holds the statistics of a whole tensor; Observe has those of groups, leave axis, block_size and "
             "block_shape out");
    }
  }

 protected:
  // Checks the inputs and copies the state by copy(to, from, bytes) where it does not stay in its place.
  template <typename Copy>
  static MergeStatisticsCall prepare(const ort::Context& context, const Copy& copy) {
    const ort::Tensor<void> x = context.input<void>(0);
    const ort::Tensor<int64_t> state = context.input<int64_t>(1);
    const int64_t size = state.element_count();
    if (state.shape.size() != 1 || (size != kStateHeader && size != kStateSize)) {
      reject("state must have shape [" + std::to_string(kStateHeader) + "] or, with a histogram, [" +
             std::to_string(kStateSize) + "], got rank " + std::to_string(state.shape.size()) + " with " +
             std::to_string(size) + " elements");
    }
    int64_t* merged = context.output<int64_t>(0, state.shape);
    if (merged != state.data) copy(merged, state.data, static_cast<size_t>(size) * sizeof(int64_t));
    return {x.data, element_type(X), x.element_count(), merged, size == kStateSize};
  }
};

// One operator for each type; Op<X> is a MergeStatisticsNode. Its name is one of its own in the
// library: of template arguments compilers forget that they were declared in a namespace without a name.
template <template <int> class Op>
std::vector<const OrtCustomOp*> merge_statistics_ops_of() {
  static const ort::CustomOp<Op<ort::kFloat>> float32;
  static const ort::CustomOp<Op<ort::kFloat16>> float16;
  static const ort::CustomOp<Op<ort::kBfloat16>> bfloat16;
  return {&float32, &float16, &bfloat16};
}

}  // namespace onnxfq
