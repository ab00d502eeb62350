// Which scale belongs to which element: one index computation for every granularity.
//
// With B_d = ceil(x.shape[d] / scale.shape[d]) element j uses the scale at i_d = floor(j_d / B_d).
// Per tensor, per axis, blocked on one axis and blocked on several axes differ only in the shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onnxfq {

// One dimension of x after neighbours were joined where one index can serve both.
struct LayoutDim {
  int64_t size;    // elements of x along it
  int64_t block;   // elements that share an index of scale
  int64_t params;  // scales along it, ceil(size / block)
  int64_t stride;  // distance between them in scale; 0 when params is 1
};

// How many elements share a scale, as attributes say it.
struct Blocks {
  int64_t axis = 1;                  // read when scale has rank 1 and when size is not 0
  int64_t size = 0;                  // block_size; 0: from the shapes
  std::vector<int64_t> shape;        // block_shape, one for each dimension of x, -1 the whole of it; or empty
  bool axis_given = true;

  // Checks what can be checked without shapes. Returns the broken rule as one line, or an empty string.
  std::string check() const;

  // The shape of scale for x where nothing but the attributes says it: [] without any of them, [x.shape[axis]]
  // with an axis alone, else the rank of x. The result is as in check.
  std::string scale_shape(const std::vector<int64_t>& x_shape, std::vector<int64_t>& shape_of_scale) const;
};

class ParamLayout {
 public:
  // Fits scale to x. Returns the broken rule as one line, or an empty string.
  std::string fit(const std::vector<int64_t>& x_shape, const std::vector<int64_t>& scale_shape, const Blocks& blocks);

  int64_t element_count() const { return element_count_; }
  int64_t param_count() const { return param_count_; }

  // At least one dimension unless element_count() is 0; sizes above 1 except for a lone one.
  const std::vector<LayoutDim>& dims() const { return dims_; }

 private:
  void join(const LayoutDim& inner);

  std::vector<LayoutDim> dims_;
  int64_t element_count_ = 0;
  int64_t param_count_ = 0;
};

// A position in x that moves forward row by row, a row being the innermost dimension, and knows the
// index into scale without dividing again.
class LayoutCursor {
 public:
  // Starts at element `element` of x in row-major order.
  LayoutCursor(const ParamLayout& layout, int64_t element);

  const LayoutDim& row() const { return dims_->back(); }
  int64_t column() const { return index_.back(); }      // position in the row
  int64_t param_base() const { return param_base_; }    // index of the row's first scale

  // Forward within the row; the row must be longer than that.
  void skip(int64_t columns) { index_.back() += columns; }

  // To the first element of the next row.
  void next_row();

 private:
  const std::vector<LayoutDim>* dims_;
  std::vector<int64_t> index_;
  int64_t param_base_ = 0;
};

}  // namespace onnxfq
