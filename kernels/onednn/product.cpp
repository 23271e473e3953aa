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
}

}  // namespace lockstep::onednn
