// Typed views over ONNX Runtime's C ABI: what a kernel sees of its attributes, inputs and outputs.
#pragma once

#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "onnxfq/float_environment.h"
#include "onnxfq/kernels.h"
#include "onnxfq/ort_abi.h"
#include "onnxfq/sizes.h"

namespace onnxfq {
namespace ort {

// A broken rule, to be shown to the user.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Carries a status of ONNX Runtime unchanged to the border of the library.
struct StatusError {
  OrtStatus* status;
};

inline void throw_if_failed(OrtStatus* status) {
  if (status) throw StatusError{status};
}

// Runs body; whatever it throws becomes a status, since no exception may cross the C border.
template <typename Body>
OrtStatus* as_status(const OrtApi* api, const char* op, const Body& body) noexcept {
  try {
    const StandardFloats floats;
    body();
    return nullptr;
  } catch (const StatusError& error) {
    return error.status;
  } catch (const UserError& error) {
    return CreateStatus::of(api)(kInvalidArgument, (std::string(op) + ": " + error.what()).c_str());
  } catch (const std::exception& error) {
    return CreateStatus::of(api)(kRuntimeException, (std::string(op) + ": " + error.what()).c_str());
  }
}

// The attributes of a node.
class Attributes {
 public:
  Attributes(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  int64_t integer(const char* name, int64_t fallback) const {
    int64_t value = fallback;
    return present(KernelInfoGetAttributeInt64::of(api_)(info_, name, &value)) ? value : fallback;
  }

  bool has_integer(const char* name) const {
    int64_t value = 0;
    return present(KernelInfoGetAttributeInt64::of(api_)(info_, name, &value));
  }

  // Empty when the attribute is absent.
  std::vector<int64_t> integers(const char* name) const {
    size_t size = 0;
    if (!present(KernelInfoGetAttributeArrayInt64::of(api_)(info_, name, nullptr, &size)) || size == 0) return {};
    std::vector<int64_t> values(size);
    throw_if_failed(KernelInfoGetAttributeArrayInt64::of(api_)(info_, name, values.data(), &size));
    return values;
  }

  std::string string(const char* name, const std::string& fallback) const {
    size_t size = 0;
    if (!present(KernelInfoGetAttributeString::of(api_)(info_, name, nullptr, &size)) || size == 0) return fallback;
    std::string value(size, '\0');
    throw_if_failed(KernelInfoGetAttributeString::of(api_)(info_, name, &value[0], &size));
    value.resize(size - 1);  // size counts the closing zero byte
    return value;
  }

  // Whether an input has the same values at every run.
  bool constant_input(size_t index) const {
    int constant = 0;
    const OrtValue* value = nullptr;
    return present(KernelInfoGetConstantInputTensor::of(api_)(info_, index, &constant, &value)) && constant == 1;
  }

 private:
  bool present(OrtStatus* status) const {
    if (status) ReleaseStatus::of(api_)(status);
    return !status;
  }

  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

// Product of the sizes from `first` on.
inline int64_t element_count(const std::vector<int64_t>& shape, size_t first = 0) {
  const int64_t count = checked_product(shape, first);
  if (count < 0) throw UserError("an input has a negative size, or more than 2^63 elements");
  return count;
}

// An input: its data and shape.
template <typename T>
struct Tensor {
  const T* data = nullptr;
  std::vector<int64_t> shape;

  int64_t element_count() const { return ort::element_count(shape); }
};

// The inputs, outputs and threads of one run of a node.
class Context {
 public:
  Context(const OrtApi* api, OrtKernelContext* context) : api_(api), context_(context) {}

  // Whether an optional input is connected.
  bool has_input(size_t index) const {
    size_t count = 0;
    throw_if_failed(KernelContextGetInputCount::of(api_)(context_, &count));
    return index < count && value(index) != nullptr;
  }

  template <typename T>
  Tensor<T> input(size_t index) const {
    const OrtValue* source = value(index);
    Tensor<T> tensor;
    void* data = nullptr;
    throw_if_failed(GetTensorMutableData::of(api_)(const_cast<OrtValue*>(source), &data));
    tensor.data = static_cast<const T*>(data);
    tensor.shape = shape(source);
    return tensor;
  }

  // Whether an optional output is connected.
  bool has_output(size_t index) const {
    size_t count = 0;
    throw_if_failed(KernelContextGetOutputCount::of(api_)(context_, &count));
    return index < count;
  }

  // nullptr when the output is optional and not connected.
  template <typename T>
  T* output(size_t index, const std::vector<int64_t>& shape) const {
    OrtValue* target = nullptr;
    throw_if_failed(KernelContextGetOutput::of(api_)(context_, index, shape.data(), shape.size(), &target));
    if (!target) return nullptr;
    void* data = nullptr;
    throw_if_failed(GetTensorMutableData::of(api_)(target, &data));
    return static_cast<T*>(data);
  }

  // The threads of the session's operator pool.
  cpu::Threads threads() { return {&Context::run, this}; }

  // The stream that a node of the CUDA provider queues its work on.
  void* stream() const {
    void* stream = nullptr;
    throw_if_failed(KernelContextGetGpuComputeStream::of(api_)(context_, &stream));
    return stream;
  }

 private:
  const OrtValue* value(size_t index) const {
    const OrtValue* found = nullptr;
    throw_if_failed(KernelContextGetInput::of(api_)(context_, index, &found));
    return found;
  }

  std::vector<int64_t> shape(const OrtValue* source) const {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    throw_if_failed(GetTensorTypeAndShape::of(api_)(source, &info));
    size_t rank = 0;
    OrtStatus* status = GetDimensionsCount::of(api_)(info, &rank);
    std::vector<int64_t> dims(rank);
    if (!status) status = GetDimensions::of(api_)(info, dims.data(), rank);
    ReleaseTensorTypeAndShapeInfo::of(api_)(info);
    throw_if_failed(status);
    return dims;
  }

  static void run(void* pool, void (*task)(void*, size_t), size_t count, void* data) {
    const Context& self = *static_cast<Context*>(pool);
    // 0 batches: the runtime hands tasks out one by one, to whichever thread is free.
    throw_if_failed(KernelContextParallelFor::of(self.api_)(self.context_, task, count, 0, data));
  }

  const OrtApi* api_;
  OrtKernelContext* context_;
};

// The execution providers that operators are written for. nullptr is the CPU provider.
constexpr const char* kOnCpu = nullptr;
constexpr const char* kOnCuda = "CUDAExecutionProvider";

// Op::kInPlaceInput of an operator whose first output may take no input's memory.
constexpr int kNoInput = -1;
// Op::kFirstHostInput of an operator that wants all inputs where its provider keeps them.
constexpr size_t kNone = 1000;

// The callbacks that every operator of this library answers alike. `Op` has: name, input and output types, how many
// of them are required, the provider, the first input that lies in the host's memory, the input whose memory the
// first output may take; a constructor from Attributes; run(Context&).
// An operator of several types is several of these under one name: the runtime picks by the types of a node.
template <typename Op>
struct CustomOp : OrtCustomOp {
  CustomOp() : OrtCustomOp{} {
    version = kCustomOpVersion;
    GetName = [](const OrtCustomOp*) -> const char* { return Op::kName; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return Op::kProvider; };
    GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return std::size(Op::kInputTypes); };
    GetInputType = [](const OrtCustomOp*, size_t index) -> int { return Op::kInputTypes[index]; };
    GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return std::size(Op::kOutputTypes); };
    GetOutputType = [](const OrtCustomOp*, size_t index) -> int { return Op::kOutputTypes[index]; };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
      return index < Op::kRequiredInputs ? kRequired : kOptional;
    };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
      return index < Op::kRequiredOutputs ? kRequired : kOptional;
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t index) -> int {
      return index < Op::kFirstHostInput ? kProviderMemory : kHostMemory;
    };
    GetVariadicInputMinArity = [](const OrtCustomOp*) -> int { return 1; };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) -> int { return 1; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) -> int { return 1; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) -> int { return 1; };
    GetStartVersion = [](const OrtCustomOp*) -> int { return 1; };
    GetEndVersion = [](const OrtCustomOp*) -> int { return 1; };
    // InferOutputShapeFn stays empty: before calling it onnxruntime 1.31 dereferences the type of every
    // input, also of an optional one that is left out by an empty name, and takes unknown ranks for
    // scalars. A graph that wants shapes states them as value_info.
    GetMayInplace = [](int** inputs, int** outputs) -> size_t {
      static int input = Op::kInPlaceInput;
      static int output = 0;
      *inputs = &input;
      *outputs = &output;
      return Op::kInPlaceInput == kNoInput ? 0 : 1;
    };
    ReleaseMayInplace = [](int*, int*) {};
    GetAliasMap = [](int**, int**) -> size_t { return 0; };
    ReleaseAliasMap = [](int*, int*) {};
    CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                        void** kernel) -> OrtStatus* {
      return as_status(api, Op::kName, [&] { *kernel = new Kernel{api, Op(Attributes(api, info))}; });
    };
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatus* {
      const Kernel& self = *static_cast<Kernel*>(kernel);
      return as_status(self.api, Op::kName, [&] {
        Context view(self.api, context);
        self.op.run(view);
      });
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  }

  struct Kernel {
    const OrtApi* api;
    Op op;
  };
};

}  // namespace ort
}  // namespace onnxfq
