// The entries that vector loops take over from the plain kernels. Cross entropy stays: a batch of it takes microseconds.
#include "kernels/cpu/fast.h"

#include "kernels/cpu/mixed.h"
#include "src/core/cpu_device.h"

namespace lockstep {

void use_fast_cpu_kernels(KernelTable& table) {
  table.fill = fast::fill;
  table.add = fast::add;
  table.accumulate = fast::accumulate;
  table.scale = fast::scale;
  table.scale_by = fast::scale_by;
  table.relu = fast::relu;
  table.relu_backward = fast::relu_backward;
  table.bias = fast::bias;
  table.bias_backward = fast::bias_backward;
  table.max_pool2d = fast::max_pool2d;
  table.max_pool2d_backward = fast::max_pool2d_backward;
  table.lrn = fast::lrn;
  table.lrn_backward = fast::lrn_backward;
  table.l2_loss = fast::l2_loss;
  table.sgd_step = fast::sgd_step;
  table.find_bad_gradients = fast::find_bad_gradients;
  table.mixed = cpu_mixed_kernels();
}

}  // namespace lockstep
