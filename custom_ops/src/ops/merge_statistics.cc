// MergeStatistics for the CPU provider.
#include "merge_statistics.h"

#include <cstring>

#include "ops.h"

namespace onnxfq {
namespace {

template <int X>
class MergeStatisticsOnCpu : public MergeStatisticsNode<X> {
 public:
  static constexpr const char* kProvider = ort::kOnCpu;

  using MergeStatisticsNode<X>::MergeStatisticsNode;

  void run(ort::Context& context) const {
    typename MergeStatisticsNode<X>::Run run;
    this->prepare(
        context, [](int64_t* to, const int64_t* from, size_t bytes) { std::memcpy(to, from, bytes); }, run);
    cpu::merge_statistics(run.call, context.threads());
  }
};

}  // namespace

std::vector<const OrtCustomOp*> merge_statistics_ops() { return merge_statistics_ops_of<MergeStatisticsOnCpu>(); }

}  // namespace onnxfq
