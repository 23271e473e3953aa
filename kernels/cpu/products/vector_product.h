// Products of one to four rows with a matrix, which reads every element of it once: it is used where it is, and the
// time is that of reading it. For recurrent layers and text that is generated token by token. For all instruction sets.
#pragma once

#include "kernels/cpu/products/product.h"

namespace lockstep::vector_product {

// Its sums are cut differently from those of packed_product.
bool suits(const Product& product);

// On the calling thread; for products of up to four rows. A result does not depend on the columns that are computed
// with it.
void multiply_alone(const Product& product);

}  // namespace lockstep::vector_product
