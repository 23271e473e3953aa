#include "kernels/cpu/products/packed_product.h"

#include <algorithm>

#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/products/tile.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/cpu/simd/transpose.h"

#define LOCKSTEP_LOOPS "kernels/cpu/products/packed_product.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::packed_product {

bool is_turned(const Product& p) {
  constexpr std::int64_t kFewRows = 192;
  return p.b.row_step == 1 && p.b.column_step != 1 && p.rows <= kFewRows && p.rows < p.columns;
}

void multiply_alone(const Product& p, bool turned) { LOCKSTEP_BY_ISA(packed_product::multiply_alone)(p, turned); }

}  // namespace lockstep::packed_product
