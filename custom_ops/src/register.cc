// The entry point that ONNX Runtime looks up when a session option names this library.
#include <mutex>

#include "onnxfq/host_device.h"
#include "onnxfq/ort_kernel.h"
#include "ops/ops.h"

namespace {

// The domain, made once: sessions keep a pointer to it, so it is never released.
OrtCustomOpDomain* domain(const OrtApi* api) {
  static std::mutex mutex;
  static OrtCustomOpDomain* made = nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  if (!made) {
    OrtCustomOpDomain* fresh = nullptr;
    using namespace onnxfq::ort;
    throw_if_failed(CreateCustomOpDomain::of(api)("onnxfq", &fresh));
    for (const auto& ops : {onnxfq::fake_quantize_ops(), onnxfq::dynamic_fake_quantize_ops(),
                            onnxfq::merge_statistics_ops(), onnxfq::observe_ops(), onnxfq::cuda_ops()}) {
      for (const OrtCustomOp* op : ops) throw_if_failed(CustomOpDomainAdd::of(api)(fresh, op));
    }
    made = fresh;
  }
  return made;
}

}  // namespace

FQ_EXPORT OrtStatus* FQ_ORT_CALL RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  // Older runtimes answer nullptr and have logged why; without a table not even a status can be made.
  const OrtApi* api = base->GetApi(onnxfq::ort::kApiVersion);
  if (!api) return nullptr;
  return onnxfq::ort::as_status(api, "onnxfq", [&] {
    onnxfq::ort::throw_if_failed(onnxfq::ort::AddCustomOpDomain::of(api)(options, domain(api)));
  });
}
