// Binary functions, comparisons and selection, with broadcasting.
#include "kernels/binary_functions.h"
#include "kernels/cpu/reference.h"
#include "kernels/strided_loop.h"

namespace lockstep::reference {

namespace {

StridedLoop<2> loop_over(In a, In b, const Shape& out) {
  return {out, {broadcast_strides(a.shape, out), broadcast_strides(b.shape, out)}};
}

void binary(BinaryFunction function, In a, In b, Out out, Stream&) {
  const float *const x = a.floats(), *const y = b.floats();
  float* to = out.floats();
  for_each_outer(loop_over(a, b, out.shape), 0,
                 [&](const auto& at) { *to++ = value_of(function, x[at[0]], y[at[1]]); });
}

void compare(Comparison comparison, In a, In b, Out mask, Stream&) {
  const float *const x = a.floats(), *const y = b.floats();
  auto* to = mask.as<std::uint8_t>();
  for_each_outer(loop_over(a, b, mask.shape), 0,
                 [&](const auto& at) { *to++ = holds(comparison, x[at[0]], y[at[1]]) ? 1 : 0; });
}

void where(In condition, In a, In b, Out out, Stream&) {
  const auto* const chosen = static_cast<const std::uint8_t*>(condition.data);
  const float *const x = a.floats(), *const y = b.floats();
  float* to = out.floats();
  const StridedLoop<3> loop(out.shape, {broadcast_strides(condition.shape, out.shape),
                                        broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape)});
  for_each_outer(loop, 0, [&](const auto& at) { *to++ = chosen[at[0]] != 0 ? x[at[1]] : y[at[2]]; });
}

}  // namespace

void use_binary(KernelTable& table) {
  table.binary = any_float<binary>;
  table.compare = any_float<compare>;
  table.where = any_float<where>;
}

}  // namespace lockstep::reference
