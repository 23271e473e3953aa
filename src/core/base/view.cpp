#include "lockstep/core/view.h"

#include "lockstep/core/error.h"

namespace lockstep {

void internal::wrong_element_type(DType expected, DType got, const Shape& shape) {
  check_failed(__FILE__, __LINE__, "dtype == kDTypeOf<T>",
               fmt::format("a kernel for {} got {} of shape {}", name_of(expected), name_of(got), shape.text()));
}

}  // namespace lockstep
