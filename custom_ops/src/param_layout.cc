// Fits the shape of scale to the shape of x and walks both together.
#include "onnxfq/param_layout.h"

#include <algorithm>

#include "onnxfq/sizes.h"

namespace onnxfq {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

std::string text(const std::vector<int64_t>& shape) {
  std::string line = "[";
  for (size_t d = 0; d < shape.size(); ++d) line += (d ? ", " : "") + std::to_string(shape[d]);
  return line + "]";
}

// Sets count to the product of shape. Returns the broken rule, or an empty string.
std::string count_elements(const char* name, const std::vector<int64_t>& shape, int64_t& count) {
  count = checked_product(shape);
  if (count >= 0) return "";
  return std::string(name) + " of shape " + text(shape) + " has a negative size, or more than 2^63 elements";
}

// Makes axis count from the front. Returns the broken rule, or an empty string.
std::string normalize_axis(int64_t& axis, int64_t rank) {
  if (axis < -rank || axis >= rank) {
    return "axis " + std::to_string(axis) + " is outside x of rank " + std::to_string(rank) + "; give one of [" +
           std::to_string(-rank) + ", " + std::to_string(rank - 1) + "]";
  }
  if (axis < 0) axis += rank;
  return "";
}

}  // namespace

std::string Blocks::check() const {
  if (size < 0) {
    return "block_size must be at least 1, or 0 to take it from the shapes, got " + std::to_string(size);
  }
  if (size > 0 && !shape.empty()) return "block_size and block_shape are both given; give one";
  for (int64_t block : shape) {
    if (block < 1 && block != -1) {
      return "block_shape " + text(shape) + " must hold sizes of at least 1, or -1 for a whole dimension";
    }
  }
  return "";
}

std::string Blocks::scale_shape(const std::vector<int64_t>& x_shape, std::vector<int64_t>& shape_of_scale) const {
  shape_of_scale.clear();
  if (!shape.empty()) {
    if (shape.size() != x_shape.size()) {
      return "block_shape " + text(shape) + " must have one size for each dimension of x " + text(x_shape);
    }
    for (size_t d = 0; d < shape.size(); ++d) {
      shape_of_scale.push_back(shape[d] == -1 ? 1 : ceil_div(x_shape[d], shape[d]));
    }
    return "";
  }
  if (!axis_given) return size > 0 ? "block_size without axis; give the axis the blocks run along" : "";
  int64_t at = axis;
  const std::string problem = normalize_axis(at, static_cast<int64_t>(x_shape.size()));
  if (!problem.empty()) return problem;
  const int64_t along = x_shape[static_cast<size_t>(at)];
  if (size == 0) {
    shape_of_scale = {along};
  } else {
    shape_of_scale = x_shape;
    shape_of_scale[static_cast<size_t>(at)] = ceil_div(along, size);
  }
  return "";
}

std::string ParamLayout::fit(const std::vector<int64_t>& x_shape, const std::vector<int64_t>& scale_shape,
                             const Blocks& blocks) {
  int64_t axis = blocks.axis;
  const int64_t block_size = blocks.size;
  const int64_t rank = static_cast<int64_t>(x_shape.size());
  dims_.clear();
  std::string uncounted = count_elements("x", x_shape, element_count_);
  if (uncounted.empty()) uncounted = count_elements("scale", scale_shape, param_count_);
  if (!uncounted.empty()) return uncounted;

  if (!blocks.shape.empty() && blocks.shape.size() != x_shape.size()) {
    return "block_shape " + text(blocks.shape) + " must have one size for each dimension of x " + text(x_shape);
  }
  std::vector<int64_t> params(x_shape.size(), 1);
  const bool by_shape = !blocks.shape.empty();
  if (by_shape && scale_shape.size() != x_shape.size()) {
    return "scale of shape " + text(scale_shape) + " does not fit x " + text(x_shape) +
           "; with block_shape it has as many dimensions as x";
  }
  if (by_shape) {
    params = scale_shape;
  } else if (param_count_ != 1) {
    const bool per_axis = scale_shape.size() == 1 && block_size == 0 && rank != 1;
    if (per_axis || block_size != 0) {
      const std::string problem = normalize_axis(axis, rank);
      if (!problem.empty()) return problem;
    }
    if (per_axis) {
      if (scale_shape[0] != x_shape[static_cast<size_t>(axis)]) {
        return "scale of shape " + text(scale_shape) + " does not fit axis " + std::to_string(axis) + " of x " +
               text(x_shape) + "; give " + std::to_string(x_shape[static_cast<size_t>(axis)]) +
               " scales or another axis";
      }
      params[static_cast<size_t>(axis)] = scale_shape[0];
    } else if (scale_shape.size() == x_shape.size()) {
      params = scale_shape;
    } else {
      return "scale of shape " + text(scale_shape) + " does not fit x " + text(x_shape) +
             "; give one scale, one per index of axis, or as many dimensions as x";
    }
  }

  int64_t stride = 1;
  std::vector<LayoutDim> full(x_shape.size());
  for (size_t d = x_shape.size(); d-- > 0;) {
    const int64_t size = x_shape[d];
    const int64_t even = params[d] > 0 ? std::max<int64_t>(ceil_div(size, params[d]), 1) : 1;
    const bool along_axis = block_size != 0 && param_count_ != 1 && static_cast<int64_t>(d) == axis;
    int64_t block = along_axis ? block_size : even;
    if (by_shape) block = blocks.shape[d] == -1 ? std::max<int64_t>(size, 1) : blocks.shape[d];
    const bool fits = size == 0 ? params[d] <= 1 : ceil_div(size, block) == params[d];
    if (!fits) {
      return "scale of shape " + text(scale_shape) + " does not fit x " + text(x_shape) + ": dimension " +
             std::to_string(d) + " in blocks of " + std::to_string(block) + " needs " +
             std::to_string(ceil_div(size, block)) + " scales";
    }
    // One scale for the dimension: then its block is the dimension, however long it was said to be.
    full[d] = params[d] == 1 ? LayoutDim{size, std::max<int64_t>(size, 1), 1, 0}
                             : LayoutDim{size, block, params[d], stride};
    if (element_count_ > 0) stride *= params[d];  // at most param_count_; without elements it may be anything
  }
  if (element_count_ == 0) return "";
  for (const LayoutDim& dim : full) join(dim);
  if (dims_.empty()) dims_.push_back({1, 1, 1, 0});
  return "";
}

// Appends a dimension, as a part of the last one where one index computation gives both.
void ParamLayout::join(const LayoutDim& inner) {
  if (inner.size == 1) return;
  if (!dims_.empty()) {
    LayoutDim& outer = dims_.back();
    if (inner.params == 1) {  // all of inner shares what outer picks
      outer = {outer.size * inner.size, outer.block * inner.size, outer.params, outer.stride};
      return;
    }
    // Outer picks another run of scales for each index and inner fills it with whole blocks.
    if (outer.block == 1 && outer.stride == inner.params * inner.stride && inner.size % inner.block == 0) {
      outer = {outer.size * inner.size, inner.block, outer.params * inner.params, inner.stride};
      return;
    }
  }
  dims_.push_back(inner);
}

LayoutCursor::LayoutCursor(const ParamLayout& layout, int64_t element)
    : dims_(&layout.dims()), index_(layout.dims().size()) {
  for (size_t d = dims_->size(); d-- > 0;) {
    const LayoutDim& dim = (*dims_)[d];
    index_[d] = element % dim.size;
    element /= dim.size;
    if (d + 1 < dims_->size()) param_base_ += index_[d] / dim.block * dim.stride;
  }
}

void LayoutCursor::next_row() {
  index_.back() = 0;
  for (size_t d = dims_->size() - 1; d-- > 0;) {
    const LayoutDim& dim = (*dims_)[d];
    const int64_t next = index_[d] + 1;
    if (next < dim.size) {
      if (next % dim.block == 0) param_base_ += dim.stride;
      index_[d] = next;
      return;
    }
    param_base_ -= index_[d] / dim.block * dim.stride;
    index_[d] = 0;
  }
}

}  // namespace onnxfq
