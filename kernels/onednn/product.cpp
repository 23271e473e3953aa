#include "kernels/cpu/products/product.h"
#include "kernels/onednn/onednn.h"
#include "kernels/onednn/onednn_kernels.h"
#include "lockstep/core/error.h"

namespace lockstep::onednn {

// Runs in one thread, because oneDNN splits long sums among several.
void multiply_alone(const Product& p) {
  const Threads one(1);
  const bool a_transposed = p.a.column_step != 1, b_transposed = p.b.column_step != 1;
  const auto status = dnnl::sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', p.rows, p.columns, p.inner, 1,
                                  p.a.data, a_transposed ? p.a.column_step : p.a.row_step, p.b.data,
                                  b_transposed ? p.b.column_step : p.b.row_step, p.accumulate ? 1 : 0, p.c, p.c_step);
  LOCKSTEP_CHECK(status == dnnl::status::success, "oneDNN sgemm of {} x {} x {}: status {}", p.rows, p.columns, p.inner,
                 static_cast<int>(status));
  if (p.bias == nullptr && !p.relu) return;
  const KernelTable& kernels = cpu_device().kernels();
  Stream& stream = cpu_device().default_stream();
  for (std::int64_t row = 0; row < p.rows; ++row) {
    float* const sums = p.c + row * p.c_step;
    const Shape shape = {p.columns};
    if (p.bias != nullptr) kernels.add({sums, shape}, {p.bias, shape}, {sums, shape}, stream);
    if (p.relu) kernels.relu({sums, shape}, {sums, shape}, stream);
  }
}

}  // namespace lockstep::onednn
