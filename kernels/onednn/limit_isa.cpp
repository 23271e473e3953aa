#include "kernels/onednn/onednn.h"
#include "kernels/onednn/onednn_kernels.h"
#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/log.h"

namespace lockstep::onednn {

namespace {

// The highest instruction set that oneDNN may use if our own kernels use `isa`.
dnnl::cpu_isa onednn_isa(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return dnnl::cpu_isa::sse41;  // oneDNN has no code for less
    case Isa::kAvx2: return dnnl::cpu_isa::avx2;
    case Isa::kAvx512: return dnnl::cpu_isa::avx512_core_bf16;
    case Isa::kAmx: break;
  }
  return dnnl::cpu_isa::all;
}

}  // namespace

// If the variable is unset, oneDNN decides, and follows its own variable ONEDNN_MAX_CPU_ISA.
void limit_isa() {
  if (!env::text(env::kIsa)) return;
  const dnnl::status set = dnnl::set_max_cpu_isa(onednn_isa(cpu_isa()));
  if (set != dnnl::status::success)
    log::warn("{} does not limit oneDNN ({}): {}", env::kIsa, static_cast<int>(set),
              set == dnnl::status::unimplemented ? "this oneDNN was built without that control"
                                                 : "this process used oneDNN before its first Lockstep operator");
}

}  // namespace lockstep::onednn
