// Dropout: a block of random words for four elements.
#include <algorithm>

#include "kernels/cpu/fast.h"
#include "kernels/dropout_rule.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

constexpr Index kBlocks = 64;  // of a piece whose factors lie in the first-level cache

// factors (4 * kBlocks) = what elements 4 * first_block and on are multiplied by.
LOCKSTEP_CPU_DISPATCH(void, factors_loop,
                      (std::uint64_t seed, std::uint64_t stream, std::uint64_t first_block, std::uint32_t threshold, float factor,
                       float* factors),
                      (seed, stream, first_block, threshold, factor, factors), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index block = 0; block < kBlocks; ++block) {
                          const PhiloxBlock random = philox_block(seed, stream, first_block + static_cast<std::uint64_t>(block));
                          for (int i = 0; i < 4; ++i) factors[4 * block + i] = random.words[i] >= threshold ? factor : 0.0F;
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, apply_factors, (const float* x, const float* factors, Index count, bool accumulate, float* y),
                      (x, factors, count, accumulate, y), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index i = 0; i < count; ++i) y[i] += factors[i] > 0 ? x[i] * factors[i] : 0.0F;
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index i = 0; i < count; ++i) y[i] = factors[i] > 0 ? x[i] * factors[i] : 0.0F;
                        }
                      })

void dropout(const DropoutParams& params, In x, Out y, Stream&) {
  const DropoutRule rule = dropout_rule(params);
  float factors[4 * kBlocks];
  const Index count = x.count();
  for (Index done = 0; done < count;) {
    const Index element = params.first_element + done, skipped = element % 4, pieces = std::min(count - done, 4 * kBlocks - skipped);
    factors_loop(params.seed, params.stream, static_cast<std::uint64_t>(element / 4), rule.threshold, rule.factor, factors);
    apply_factors(x.floats() + done, factors + skipped, pieces, y.accumulate, y.floats() + done);
    done += pieces;
  }
}

}  // namespace

void use_dropout(KernelTable& table) { table.dropout = any_float<dropout>; }

}  // namespace lockstep::fast
