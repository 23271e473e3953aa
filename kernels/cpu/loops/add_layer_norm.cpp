// A sum and its layer norm: the loops of both, one after the other. In blocks of rows that stay in a cache they took 1.5
// times as long for large arrays, because a block's sum is then written to memory by way of the cache.
#include "kernels/cpu/cpu_table.h"
#include "lockstep/core/device.h"

namespace lockstep {

namespace {

void add_layer_norm(In a, In b, In weight, In bias, float epsilon, Out sum, Out y, Out mean, Out rstd,
                    Stream& stream) {
  const KernelTable& kernels = cpu_device().kernels();
  kernels.add(a, b, sum, stream);
  kernels.layer_norm(sum, weight, bias, epsilon, y, mean, rstd, stream);
}

}  // namespace

void use_add_layer_norm(KernelTable& table) { table.add_layer_norm = add_layer_norm; }

}  // namespace lockstep
