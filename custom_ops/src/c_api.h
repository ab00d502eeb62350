// Shared by the C functions: their structs, and the text of errors.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "onnxfq/float_environment.h"
#include "onnxfq/host_device.h"
#include "onnxfq/kernels.h"

namespace onnxfq {
namespace c_api {

// Runs body, which returns an error line or "", and hands the line out. No exception leaves the library.
template <typename Body>
int guarded(char* error, size_t error_size, const Body& body) {
  std::string message;
  try {
    const StandardFloats floats;
    message = body();
  } catch (const std::exception& exception) {
    message = exception.what();
  }
  if (message.empty()) return 0;
  if (error_size > 0) {
    const size_t length = std::min(message.size(), error_size - 1);
    std::memcpy(error, message.data(), length);
    error[length] = '\0';
  }
  return 1;
}

// A tensor whose elements have one of the types of ElementType, counted from 0.
struct ElementsArg {
  const void* x;
  void* y;
  const int64_t* shape;
  size_t rank;
  int32_t type;
};

// How x is cut into blocks.
struct BlocksArg {
  int32_t has_axis;
  int64_t axis;
  int64_t block_size;
  const int64_t* block_shape;
  size_t block_rank;
};

inline ElementType element_type(const ElementsArg& elements) {
  return static_cast<ElementType>(elements.type);
}

inline std::vector<int64_t> shape_of(const ElementsArg& elements) {
  return {elements.shape, elements.shape + elements.rank};
}

inline Blocks blocks_of(const BlocksArg& given) {
  Blocks blocks;
  blocks.axis = given.axis;
  blocks.axis_given = given.has_axis != 0;
  blocks.size = given.block_size;
  blocks.shape.assign(given.block_shape, given.block_shape + given.block_rank);
  return blocks;
}

}  // namespace c_api
}  // namespace onnxfq
