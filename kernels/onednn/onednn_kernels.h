// Convolutions and matrix products by oneDNN, which replace the CPU's plain kernels.
#pragma once

#include "lockstep/core/kernels.h"

namespace lockstep::onednn {

void use_attention(KernelTable& table);
void use_conv2d(KernelTable& table);
void use_linear(KernelTable& table);
void use_matmul(KernelTable& table);

}  // namespace lockstep::onednn
