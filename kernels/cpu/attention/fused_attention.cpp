// Forward processes a few queries at a time (Dao et al. 2022, "FlashAttention", algorithms 1 and 4): their scores with
// a tile of keys are one product, each row is a step of the online softmax, and the results are factors of another
// product. Backward processes a block of queries at a time, whose scores and gradients are stored for the products that
// sum over queries. Operands that products read column by column are first transposed into panels: a head's keys and
// values, once for each direction. Of the part that a causal mask hides, products compute at most the rest of a vector
// of keys and of a group of rows.
#include "kernels/cpu/attention/fused_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/math/rows.h"
#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/products/tile.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/cpu/simd/transpose.h"

namespace lockstep::fused_attention {

using Index = std::int64_t;

namespace {

// Several arrays in one piece of memory; each begins at a cache line.
class Arrays {
 public:
  explicit Arrays(Index floats) : memory_(floats) {}
  float* take(Index floats) {
    used_ += floats;
    return memory_.data() + used_ - floats;
  }

 private:
  Scratch memory_;
  Index used_ = 0;
};

// A block of queries and a tile of keys.
struct Square {
  Index query, rows, key, keys;
};

// The state of the online softmax of one row.
struct RowState {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
};

}  // namespace

}  // namespace lockstep::fused_attention

#define LOCKSTEP_LOOPS "kernels/cpu/attention/attention_rows.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/attention/fused_attention.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::fused_attention {

void head_forward(const HeadOperands& head, float* y, float* log_sums) {
  LOCKSTEP_BY_ISA(fused_attention::head_forward)(head, y, log_sums);
}

void head_backward(const HeadOperands& head, const float* y, const float* y_grad, const float* log_sums,
                   const HeadGradients& to) {
  LOCKSTEP_BY_ISA(fused_attention::head_backward)(head, y, y_grad, log_sums, to);
}

}  // namespace lockstep::fused_attention
