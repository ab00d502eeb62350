// The slice of ONNX Runtime's C ABI that this library uses, declared by position.
//
// No package ships the C headers, and the function table is append-only: a position, once given, stays.
// Positions were counted in onnxruntime_c_api.h; all exist since API version 17 (onnxruntime 1.17).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define FQ_ORT_CALL __stdcall
#else
#define FQ_ORT_CALL
#endif

extern "C" {

struct OrtStatus;
struct OrtValue;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtTensorTypeAndShapeInfo;

// A table of function pointers of different types.
struct OrtApi {
  void (*entries[1])();
};

struct OrtApiBase {
  const OrtApi*(FQ_ORT_CALL* GetApi)(uint32_t version);
  const char*(FQ_ORT_CALL* GetVersionString)();
};

// OrtCustomOp as of version 18, the first that has GetMayInplace. Later versions only append.
struct OrtCustomOp {
  uint32_t version;
  void*(FQ_ORT_CALL* CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char*(FQ_ORT_CALL* GetName)(const OrtCustomOp*);
  const char*(FQ_ORT_CALL* GetExecutionProviderType)(const OrtCustomOp*);
  int(FQ_ORT_CALL* GetInputType)(const OrtCustomOp*, size_t);
  size_t(FQ_ORT_CALL* GetInputTypeCount)(const OrtCustomOp*);
  int(FQ_ORT_CALL* GetOutputType)(const OrtCustomOp*, size_t);
  size_t(FQ_ORT_CALL* GetOutputTypeCount)(const OrtCustomOp*);
  void(FQ_ORT_CALL* KernelCompute)(void*, OrtKernelContext*);
  void(FQ_ORT_CALL* KernelDestroy)(void*);
  int(FQ_ORT_CALL* GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int(FQ_ORT_CALL* GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int(FQ_ORT_CALL* GetInputMemoryType)(const OrtCustomOp*, size_t);
  int(FQ_ORT_CALL* GetVariadicInputMinArity)(const OrtCustomOp*);
  int(FQ_ORT_CALL* GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int(FQ_ORT_CALL* GetVariadicOutputMinArity)(const OrtCustomOp*);
  int(FQ_ORT_CALL* GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus*(FQ_ORT_CALL* CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus*(FQ_ORT_CALL* KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus*(FQ_ORT_CALL* InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int(FQ_ORT_CALL* GetStartVersion)(const OrtCustomOp*);
  int(FQ_ORT_CALL* GetEndVersion)(const OrtCustomOp*);
  size_t(FQ_ORT_CALL* GetMayInplace)(int** input_index, int** output_index);
  void(FQ_ORT_CALL* ReleaseMayInplace)(int* input_index, int* output_index);
  size_t(FQ_ORT_CALL* GetAliasMap)(int** input_index, int** output_index);
  void(FQ_ORT_CALL* ReleaseAliasMap)(int* input_index, int* output_index);
};

}  // extern "C"

namespace onnxfq {
namespace ort {

constexpr uint32_t kApiVersion = 17;
constexpr uint32_t kCustomOpVersion = 18;

// Values of ONNXTensorElementDataType, OrtErrorCode and OrtCustomOpInputOutputCharacteristic.
constexpr int kFloat = 1, kInt32 = 6, kInt64 = 7, kBool = 9, kFloat16 = 10, kDouble = 11, kBfloat16 = 16;
constexpr int kInvalidArgument = 2, kRuntimeException = 6;
constexpr int kRequired = 0, kOptional = 1;
// Values of OrtMemType: an input lies where the provider keeps its tensors, or in the host's memory.
constexpr int kProviderMemory = 0, kHostMemory = -2;

// One entry of the table: where it stands and how it is called.
template <size_t Position, typename Function>
struct Entry {
  static Function* of(const OrtApi* api) {
    return reinterpret_cast<Function*>(const_cast<OrtApi*>(api)->entries[Position]);
  }
};

using CreateStatus = Entry<0, OrtStatus*(int code, const char* message)>;
using CreateCustomOpDomain = Entry<26, OrtStatus*(const char* name, OrtCustomOpDomain** domain)>;
using CustomOpDomainAdd = Entry<27, OrtStatus*(OrtCustomOpDomain*, const OrtCustomOp*)>;
using AddCustomOpDomain = Entry<28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*)>;
using GetTensorMutableData = Entry<51, OrtStatus*(OrtValue*, void** data)>;
using GetDimensionsCount = Entry<61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t* rank)>;
using GetDimensions = Entry<62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t rank)>;
using GetTensorTypeAndShape = Entry<65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**)>;
using KernelInfoGetAttributeInt64 = Entry<86, OrtStatus*(const OrtKernelInfo*, const char* name, int64_t* value)>;
using KernelInfoGetAttributeString =
    Entry<87, OrtStatus*(const OrtKernelInfo*, const char* name, char* value, size_t* size)>;
using KernelContextGetInputCount = Entry<88, OrtStatus*(const OrtKernelContext*, size_t* count)>;
using KernelContextGetInput = Entry<90, OrtStatus*(const OrtKernelContext*, size_t index, const OrtValue**)>;
using KernelContextGetOutput =
    Entry<91, OrtStatus*(OrtKernelContext*, size_t index, const int64_t* dims, size_t rank, OrtValue**)>;
using KernelContextGetOutputCount = Entry<89, OrtStatus*(const OrtKernelContext*, size_t* count)>;
using ReleaseStatus = Entry<93, void(OrtStatus*)>;
using ReleaseTensorTypeAndShapeInfo = Entry<99, void(OrtTensorTypeAndShapeInfo*)>;
using KernelInfoGetAttributeArrayInt64 =
    Entry<163, OrtStatus*(const OrtKernelInfo*, const char* name, int64_t* values, size_t* size)>;
using KernelContextGetGpuComputeStream = Entry<193, OrtStatus*(const OrtKernelContext*, void** stream)>;
using KernelInfoGetConstantInputTensor =
    Entry<249, OrtStatus*(const OrtKernelInfo*, size_t index, int* is_constant, const OrtValue**)>;
using KernelContextParallelFor =
    Entry<274, OrtStatus*(const OrtKernelContext*, void (*task)(void* data, size_t index), size_t total,
                          size_t batches, void* data)>;

}  // namespace ort
}  // namespace onnxfq
