// Dropout (Srivastava et al. 2014): kept elements are scaled so that the expectation does not change.
#include "kernels/cpu/reference.h"
#include "kernels/dropout_rule.h"

namespace lockstep::reference {

namespace {

void dropout(const DropoutParams& params, In x, Out y, Stream&) {
  const DropoutRule rule = dropout_rule(params);
  const DropoutRows rows = dropout_rows(params, x.count());
  for (Index i = 0; i < x.count(); ++i) {
    const auto element =
        static_cast<std::uint64_t>(params.first_element + i / rows.elements * rows.numbers + i % rows.elements);
    const std::uint32_t word = philox_block(params.seed, params.stream, element / 4).words[element % 4];
    store(y.floats()[i], word >= rule.threshold ? x.floats()[i] * rule.factor : 0.0F, y.accumulate);
  }
}

}  // namespace

void use_dropout(KernelTable& table) { table.dropout = any_float<dropout>; }

}  // namespace lockstep::reference
