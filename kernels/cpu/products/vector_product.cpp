#include "kernels/cpu/products/vector_product.h"

#include <algorithm>

#include "kernels/cpu/math/any_float.h"
#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/cpu/simd/vector.h"
#include "src/core/base/half.h"

namespace lockstep::vector_product {
constexpr std::int64_t kMostRows = 4;
}

#define LOCKSTEP_LOOPS "kernels/cpu/products/vector_product.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::vector_product {

bool suits(const Product& p) {
  constexpr std::int64_t kFewest = 16;  // shorter sums and rows gain nothing
  return p.rows <= kMostRows && std::min(p.columns, p.inner) >= kFewest;
}

void multiply_alone(const Product& p) { LOCKSTEP_BY_ISA(vector_product::multiply_alone)(p); }

}  // namespace lockstep::vector_product
