// Products of one to four rows with a matrix. They read each element of the matrix once, from its own place, and take
// as long as that read. For recurrent layers and text that is generated token by token, with all instruction sets.
#pragma once

#include "kernels/cpu/products/product.h"

namespace lockstep::vector_product {

// True for one to four rows and 16 or more columns and elements of the sums. They are cut differently from those of
// packed_product.
bool suits(const Product& product);

// On the calling thread; for products of up to four rows. A result does not depend on the columns that are computed
// with it.
void multiply_alone(const Product& product);

}  // namespace lockstep::vector_product
