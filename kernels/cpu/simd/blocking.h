// The sizes of blocks, by instruction set: how many sums a tile of a product keeps in registers, next to the vectors of
// the one operand and a broadcast element of the other.
#pragma once

#include <cstdint>

namespace lockstep {

struct Blocking {
  std::int64_t lanes;                            // floats in a vector
  std::int64_t tile_vectors;                     // vectors in a row of a tile
  std::int64_t tile_rows;                        // rows of a tile with that many vectors
  std::int64_t rows_of_3, rows_of_2, rows_of_1;  // rows of tiles with fewer vectors
  std::int64_t grouped_outputs;   // adjacent outputs of a grouped convolution, next to the vectors of three taps
  std::int64_t grouped_channels;  // channels whose gradients are summed at once, three sums each
  // Packed products: elements of the sums that are added at once, rows of a block of a (second-level cache), columns of
  // a block of b (outer cache).
  std::int64_t inner, block_rows, block_columns;
};

inline constexpr Blocking kBlockingByLanes[] = {
#if defined(__aarch64__)
    {4, 4, 6, 8, 12, 16, 14, 4, 384, 120, 2048},  // NEON: 32 registers
#else
    {4, 2, 4, 4, 4, 8, 8, 2, 384, 120, 2048},  // SSE2: 16 registers, and products need one of their own
#endif
    {8, 2, 6, 6, 6, 12, 10, 2, 384, 120, 2048},    // AVX2: 16 registers
    {16, 4, 6, 8, 12, 16, 14, 4, 384, 120, 2048},  // AVX-512: 32 registers
};
constexpr const Blocking& blocking_for(std::int64_t lanes) {
  return kBlockingByLanes[lanes == 4 ? 0 : lanes == 8 ? 1 : 2];
}

}  // namespace lockstep
