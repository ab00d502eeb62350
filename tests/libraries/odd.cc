// A library of the user's: operator Odd of domain `mine` gives 2 x.
#include "onnxfq/ort_kernel.h"

namespace {

using namespace onnxfq;

struct Odd {
  static constexpr const char* kName = "Odd";
  static constexpr int kInputTypes[] = {ort::kFloat};
  static constexpr int kOutputTypes[] = {ort::kFloat};
  static constexpr size_t kRequiredInputs = 1;
  static constexpr size_t kRequiredOutputs = 1;
  static constexpr const char* kProvider = ort::kOnCpu;
  static constexpr size_t kFirstHostInput = ort::kNone;
  static constexpr int kInPlaceInput = ort::kNoInput;
  explicit Odd(const ort::Attributes&) {}
  void run(ort::Context& context) const {
    const ort::Tensor<float> x = context.input<float>(0);
    float* y = context.output<float>(0, x.shape);
    for (int64_t i = 0; i < x.element_count(); ++i) y[i] = 2 * x.data[i];
  }
};

}  // namespace

FQ_EXPORT OrtStatus* FQ_ORT_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ort::kApiVersion);
  static const ort::CustomOp<Odd> op;
  static OrtCustomOpDomain* domain = nullptr;
  OrtStatus* status = nullptr;
  if (!domain) {
    status = ort::CreateCustomOpDomain::of(api)("mine", &domain);
    if (!status) status = ort::CustomOpDomainAdd::of(api)(domain, &op);
  }
  return status ? status : ort::AddCustomOpDomain::of(api)(options, domain);
}
