#include "kernels/cpu/products/product.h"

#include <array>

#include "kernels/onednn/onednn.h"
#include "kernels/onednn/onednn_kernels.h"
#include "kernels/onednn/recent_plan.h"
#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/error.h"
#include "src/core/base/processor.h"

namespace lockstep::onednn {

namespace {

// The sizes and distances of a product of bfloat16 matrices with a result of float32.
struct Layout {
  std::array<std::int64_t, 3> sizes;  // rows, columns, inner
  Dims a_steps, b_steps, c_steps;
  bool accumulate;

  bool operator==(const Layout&) const = default;
};

struct MatmulPlan {
  Layout key;
  Desc a, b, c, scratch;
  dnnl::matmul primitive;

  explicit MatmulPlan(const Layout& layout) : key(layout) {
    const auto [rows, columns, inner] = layout.sizes;
    a = Desc({rows, inner}, dnnl::memory::data_type::bf16, layout.a_steps);
    b = Desc({inner, columns}, dnnl::memory::data_type::bf16, layout.b_steps);
    c = Desc({rows, columns}, dnnl::memory::data_type::f32, layout.c_steps);
    dnnl::primitive_attr attributes = with_user_scratchpad();
    if (layout.accumulate) {
      dnnl::post_ops operations;
      operations.append_sum(1);
      attributes.set_post_ops(operations);
    }
    const auto desc = matmul_desc(a, b, c, attributes);
    scratch = desc.scratchpad_desc();
    primitive = dnnl::matmul(desc);
  }
};

const MatmulPlan& matmul_plan(const Layout& layout) {
  try {
    return recent_plan<MatmulPlan>(layout);
  } catch (const dnnl::error& error) {
    throw Error("product: oneDNN cannot multiply {} x {} x {} of bfloat16: {}", layout.sizes[0], layout.sizes[1],
                layout.sizes[2], error.what());
  }
}

}  // namespace

// oneDNN's own variable may limit it, too.
bool multiplies_bfloat16() {
  static const bool kDoes = [] {
    if (cpu_isa() < Isa::kAvx512 || !has_avx512_bfloat16()) return false;
    constexpr auto kNeeded = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
  }();
  return kDoes;
}

// Runs in one thread, because oneDNN splits long sums among several.
void multiply_alone(const Product& p) {
  const Threads one(1);
  const bool a_transposed = p.a.column_step != 1, b_transposed = p.b.column_step != 1;
  const auto status = dnnl::sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', p.rows, p.columns, p.inner, 1,
                                  p.a.floats(), a_transposed ? p.a.column_step : p.a.row_step, p.b.floats(),
                                  b_transposed ? p.b.column_step : p.b.row_step, p.accumulate ? 1 : 0, p.c, p.c_step);
  LOCKSTEP_CHECK(status == dnnl::status::success, "oneDNN sgemm of {} x {} x {}: status {}", p.rows, p.columns, p.inner,
                 static_cast<int>(status));
}

void multiply_bfloat16_alone(const Product& p) {
  const Threads one(1);
  const MatmulPlan& plan = matmul_plan({{p.rows, p.columns, p.inner},
                                        {p.a.row_step, p.a.column_step},
                                        {p.b.row_step, p.b.column_step},
                                        {p.c_step, 1},
                                        p.accumulate});
  const Buffer scratch = cpu_device().allocate(plan.scratch.get_size());
  dnnl::matmul(plan.primitive)
      .execute(this_threads_stream(), {{DNNL_ARG_SRC, memory_at(plan.a, p.a.data)},
                                       {DNNL_ARG_WEIGHTS, memory_at(plan.b, p.b.data)},
                                       {DNNL_ARG_DST, memory_at(plan.c, p.c)},
                                       {DNNL_ARG_SCRATCHPAD, memory_at(plan.scratch, scratch.data())}});
  this_threads_stream().wait();
}

}  // namespace lockstep::onednn
