// Inputs that the quantizing operators share: elements of several types, parameters as float32, blocks.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "../cpu/elements.h"
#include "onnxfq/ort_kernel.h"

namespace onnxfq {

constexpr ElementType element_type(int onnx_type) {
  return onnx_type == ort::kFloat16    ? ElementType::kFloat16
         : onnx_type == ort::kBfloat16 ? ElementType::kBfloat16
                                       : ElementType::kFloat32;
}

inline void reject(const std::string& problem) {
  if (!problem.empty()) throw ort::UserError(problem);
}

// A parameter as float32, converted when it has the 16-bit type of x.
class FloatInput {
 public:
  FloatInput() = default;
  FloatInput(const ort::Context& context, size_t index, ElementType type) {
    ort::Tensor<void> given = context.input<void>(index);
    shape_ = std::move(given.shape);
    data_ = static_cast<const float*>(given.data);
    if (type == ElementType::kFloat32) return;
    converted_.resize(static_cast<size_t>(count()));
    cpu::to_floats(type, given.data, 0, count(), converted_.data());
    data_ = converted_.data();
  }
  // A copy would point into the original.
  FloatInput(FloatInput&&) = default;
  FloatInput& operator=(FloatInput&&) = default;

  const float* data() const { return data_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t count() const { return ort::element_count(shape_); }

 private:
  const float* data_ = nullptr;
  std::vector<int64_t> shape_;
  std::vector<float> converted_;
};

// The switch of an operator: one bool, true when the input is not connected.
inline bool read_enabled(const ort::Context& context, size_t index) {
  if (!context.has_input(index)) return true;
  const ort::Tensor<bool> flag = context.input<bool>(index);
  if (flag.element_count() != 1) {
    reject("enabled must have one element, got " + std::to_string(flag.element_count()));
  }
  return *flag.data;
}

// Result of an operator that is switched off: its first input.
inline void copy_input(const ort::Context& context, ElementType type) {
  const ort::Tensor<void> x = context.input<void>(0);
  void* y = context.output<void>(0, x.shape);
  const int64_t count = x.element_count();
  if (y != x.data && count > 0) std::memcpy(y, x.data, static_cast<size_t>(count) * element_size(type));
}

// Stands for an operator where x is float64: refused by name and with the remedy when the node is made, not in
// the words of the runtime, which has no kernel then.
template <typename Op>
class Float64Refused {
 public:
  static constexpr const char* kName = Op::kName;
  static constexpr const auto& kInputTypes = Op::kInputTypes;
  static constexpr const auto& kOutputTypes = Op::kOutputTypes;
  static constexpr size_t kRequiredInputs = Op::kRequiredInputs;
  static constexpr size_t kRequiredOutputs = Op::kRequiredOutputs;
  static constexpr const char* kProvider = Op::kProvider;
  static constexpr size_t kFirstHostInput = Op::kFirstHostInput;
  static constexpr int kInPlaceInput = ort::kNoInput;

  explicit Float64Refused(const ort::Attributes&) {
    reject("x is float64, which no kernel takes; cast it to float32");
  }
  void run(ort::Context&) const {}
};

inline Blocks read_blocks(const ort::Attributes& attributes) {
  Blocks blocks;
  blocks.axis = attributes.integer("axis", 1);
  blocks.axis_given = attributes.has_integer("axis");
  blocks.size = attributes.integer("block_size", 0);
  blocks.shape = attributes.integers("block_shape");
  return blocks;
}

}  // namespace onnxfq
