// The parts of which the CPU's kernel table is made. Each replaces entries of the reference table.
#pragma once

#include "lockstep/core/kernels.h"

namespace lockstep {

void use_fast_cpu_kernels(KernelTable& table);  // loops/: vector loops
void use_add_layer_norm(KernelTable& table);    // loops/add_layer_norm.cpp

// Each has one file that chooses, by shape and instruction set, among our own kernels, oneDNN, and AMX.
void use_convolutions(KernelTable& table);     // conv/conv2d.cpp
void use_linear_products(KernelTable& table);  // products/linear.cpp, product.cpp
void use_matrix_products(KernelTable& table);  // products/matmul.cpp, product.cpp
void use_attention(KernelTable& table);        // attention/attention.cpp

}  // namespace lockstep
