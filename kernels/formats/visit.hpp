#pragma once
// Internal to kernels/formats: from a view's dtype to its element type.
#include "base/status.hpp"
#include "device/tensor_view.hpp"

namespace accord::formats {

// Ends the process with the message if `status` is an error: a broken precondition is a bug of the caller.
void require(const Status& status);

// Whether the quantizers read this dtype, and the view is well formed.
Status check_input(const MatrixView& x);

// Calls visitor(const float*) or visitor(const BF16*) with the view's first element.
template <class Visitor>
void visit_elements(const MatrixView& x, Visitor visitor) {
  if (x.dtype == Dtype::kBF16) {
    visitor(static_cast<const BF16*>(x.data));
  } else {
    visitor(static_cast<const float*>(x.data));
  }
}

}  // namespace accord::formats
