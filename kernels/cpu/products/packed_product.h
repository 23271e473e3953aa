// Matrix products from packed operands (Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix
// Multiplication"): a block of b stays in the outer cache, a block of a in the second-level cache, and a panel of b in
// the first-level cache, while tiles of c are summed in registers. For all instruction sets.
#pragma once

#include "kernels/cpu/products/product.h"

namespace lockstep::packed_product {

// With few rows and b's columns contiguous, most of the time would go into transposing b. The product is then turned:
// c^T = b^T a^T reads b as it is. Sums are cut differently, so parts of one product must agree.
bool is_turned(const Product& product);

// On the calling thread.
void multiply_alone(const Product& product, bool turned);

}  // namespace lockstep::packed_product
