// Dropout: one block of random words serves four elements.
#include <algorithm>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/dropout_rule.h"
#include "lockstep/core/cpu_dispatch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::fast {

namespace {

constexpr Index kBlocks = 64;  // of a piece whose factors fit into the first-level cache

// factors (4 * blocks) = the factors of elements 4 * first_block and following.
LOCKSTEP_CPU_DISPATCH(void, factors_loop,
                      (std::uint64_t seed, std::uint64_t stream, std::uint64_t first_block, Index blocks,
                       std::uint32_t threshold, float factor, float* factors),
                      (seed, stream, first_block, blocks, threshold, factor, factors), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index block = 0; block < blocks; ++block) {
                          const PhiloxBlock random =
                              philox_block(seed, stream, first_block + static_cast<std::uint64_t>(block));
                          for (int i = 0; i < 4; ++i)
                            factors[4 * block + i] = random.words[i] >= threshold ? factor : 0.0F;
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, apply_factors,
                      (const float* x, const float* factors, Index count, bool accumulate, float* y),
                      (x, factors, count, accumulate, y), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index i = 0; i < count; ++i) y[i] += factors[i] > 0 ? x[i] * factors[i] : 0.0F;
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index i = 0; i < count; ++i) y[i] = factors[i] > 0 ? x[i] * factors[i] : 0.0F;
                        }
                      })

// Elements [first, first + count); x and y point to the first one.
void drop(const DropoutParams& params, Index first, Index count, bool accumulate, const float* x, float* y) {
  const DropoutRule rule = dropout_rule(params);
  float factors[4 * kBlocks];
  for (Index done = 0; done < count;) {
    const Index element = first + done, skipped = element % 4, pieces = std::min(count - done, 4 * kBlocks - skipped);
    factors_loop(params.seed, params.stream, static_cast<std::uint64_t>(element / 4), (skipped + pieces + 3) / 4,
                 rule.threshold, rule.factor, factors);
    apply_factors(x + done, factors + skipped, pieces, accumulate, y + done);
    done += pieces;
  }
}

#if defined(__x86_64__)
// Compilers use more instructions than necessary to multiply 32-bit numbers to 64 bits. Here eight blocks are computed
// together, each word in the low half of a lane; a multiplication ignores the high half.
struct EightBlocks {
  __m512i words[4];
};

LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE EightBlocks eight_blocks(const DropoutParams& params, __m512i numbers) {
  constexpr __mmask8 kAll = 0xff;
  constexpr int kXorOfThree = 0x96;
  const __m512i multiplier0 = _mm512_set1_epi64(kPhiloxMultiplier0),
                multiplier1 = _mm512_set1_epi64(kPhiloxMultiplier1);
  __m512i w0 = numbers, w1 = _mm512_maskz_srli_epi64(kAll, numbers, 32);
  __m512i w2 = _mm512_set1_epi64(static_cast<Index>(params.stream)), w3 = _mm512_maskz_srli_epi64(kAll, w2, 32);
  auto key0 = static_cast<std::uint32_t>(params.seed), key1 = static_cast<std::uint32_t>(params.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round, key0 += kPhiloxWeyl0, key1 += kPhiloxWeyl1) {
    const __m512i a = _mm512_maskz_mul_epu32(kAll, w0, multiplier0), b = _mm512_maskz_mul_epu32(kAll, w2, multiplier1);
    w0 = _mm512_ternarylogic_epi64(_mm512_maskz_srli_epi64(kAll, b, 32), w1, _mm512_set1_epi64(key0), kXorOfThree);
    w2 = _mm512_ternarylogic_epi64(_mm512_maskz_srli_epi64(kAll, a, 32), w3, _mm512_set1_epi64(key1), kXorOfThree);
    w1 = b, w3 = a;
  }
  return {{w0, w1, w2, w3}};
}

LOCKSTEP_TARGET_AVX512 LOCKSTEP_ALWAYS_INLINE void drop_vector(__m512i words, __m512i threshold, __m512 factor, bool accumulate,
                                        const float* x, float* y) {
  const __mmask16 kept = _mm512_cmpge_epu32_mask(words, threshold);
  __m512 value = _mm512_maskz_mul_ps(kept, _mm512_loadu_ps(x), factor);
  if (accumulate) value = value + _mm512_loadu_ps(y);
  _mm512_storeu_ps(y, value);
}

constexpr Index kAtOnce = 32;  // number of elements of eight blocks

// Processes `count` elements, a multiple of kAtOnce, from `block` on.
LOCKSTEP_TARGET_AVX512 void drop_blocks(const DropoutParams& params, std::uint64_t block, Index count, bool accumulate,
                                        const float* x, float* y) {
  constexpr __mmask16 kHigh = 0xaaaa;
  constexpr __mmask8 kAll = 0xff;
  const DropoutRule rule = dropout_rule(params);
  const __m512i threshold = _mm512_set1_epi32(static_cast<int>(rule.threshold));
  const __m512 factor = _mm512_set1_ps(rule.factor);
  // The order in which the interleaving below outputs pairs of lanes.
  __m512i numbers =
      _mm512_add_epi64(_mm512_set1_epi64(static_cast<Index>(block)), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
  for (Index i = 0; i < count; i += kAtOnce, numbers = _mm512_add_epi64(numbers, _mm512_set1_epi64(kAtOnce / 4))) {
    if (i % kChunk == 0) prefetch_chunk(x + i), prefetch_chunk<true>(y + i);
    const auto [words] = eight_blocks(params, numbers);
    const __m512i first = _mm512_mask_mov_epi32(words[0], kHigh, _mm512_maskz_slli_epi64(kAll, words[1], 32));
    const __m512i second = _mm512_mask_mov_epi32(words[2], kHigh, _mm512_maskz_slli_epi64(kAll, words[3], 32));
    drop_vector(_mm512_maskz_unpacklo_epi64(kAll, first, second), threshold, factor, accumulate, x + i, y + i);
    drop_vector(_mm512_maskz_unpackhi_epi64(kAll, first, second), threshold, factor, accumulate, x + i + 16,
                y + i + 16);
  }
}

void drop_row(const DropoutParams& params, Index first, Index count, bool accumulate, const float* x, float* y) {
  const Index before = cpu_isa() >= Isa::kAvx512 ? std::min(count, (4 - first % 4) % 4) : count;
  const Index whole = (count - before) / kAtOnce * kAtOnce, behind = before + whole;
  drop(params, first, before, accumulate, x, y);
  if (whole > 0)
    drop_blocks(params, static_cast<std::uint64_t>((first + before) / 4), whole, accumulate, x + before, y + before);
  drop(params, first + behind, count - behind, accumulate, x + behind, y + behind);
}
#else
void drop_row(const DropoutParams& params, Index first, Index count, bool accumulate, const float* x, float* y) {
  drop(params, first, count, accumulate, x, y);
}
#endif

void dropout(const DropoutParams& params, In x, Out y, Stream&) {
  const DropoutRows rows = dropout_rows(params, x.count());
  for (Index row = 0; row < rows.count; ++row) {
    const Index begin = row * rows.elements;
    drop_row(params, params.first_element + row * rows.numbers, rows.elements, y.accumulate, x.floats() + begin,
             y.floats() + begin);
  }
}

}  // namespace

void use_dropout(KernelTable& table) { table.dropout = any_float<dropout>; }

}  // namespace lockstep::fast
