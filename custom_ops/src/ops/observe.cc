// Operator Observe: the statistics of a float tensor, as small tensors.
//
// Input: x float. Attribute: histogram, 0 or 1. Outputs: range float [2], minimum and maximum of the finite
// values; counts int64 [4], elements, NaN, infinities, zeros; bins int32 [K], ascending; bin_counts int64 [K].
#include <algorithm>

#include "onnxfq/ort_kernel.h"
#include "ops.h"

namespace onnxfq {
namespace {

class Observe {
 public:
  static constexpr const char* kName = "Observe";
  static constexpr int kInputTypes[] = {ort::kFloat};
  static constexpr int kOutputTypes[] = {ort::kFloat, ort::kInt64, ort::kInt32, ort::kInt64};
  static constexpr size_t kRequiredInputs = 1;
  static constexpr size_t kRequiredOutputs = 4;
  static constexpr bool kInPlace = false;

  explicit Observe(const ort::Attributes& attributes) {
    const int64_t histogram = attributes.integer("histogram", 1);
    if (histogram != 0 && histogram != 1) {
      throw ort::UserError("histogram must be 0 or 1, got " + std::to_string(histogram));
    }
    histogram_ = histogram == 1;
  }

  void run(ort::Context& context) const {
    const ort::Tensor<float> x = context.input<float>(0);
    const Statistics statistics = cpu::observe(x.data, x.element_count(), histogram_, context.threads());
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
  bool histogram_ = true;
};

}  // namespace

std::vector<const OrtCustomOp*> observe_ops() {
  static const ort::CustomOp<Observe> op;
  return {&op};
}

}  // namespace onnxfq
