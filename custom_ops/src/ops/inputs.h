// What the operators that quantize read alike: elements of several types, parameters as float32, blocks.
#pragma once

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

inline Blocks read_blocks(const ort::Attributes& attributes) {
  Blocks blocks;
  blocks.axis = attributes.integer("axis", 1);
  blocks.axis_given = attributes.has_integer("axis");
  blocks.size = attributes.integer("block_size", 0);
  blocks.shape = attributes.integers("block_shape");
  return blocks;
}

}  // namespace onnxfq
