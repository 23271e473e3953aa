// The multiplication of two panels on AMX's tiles.
#pragma once

#include "kernels/cpu/products/amx_parts.h"

#if defined(__clang__)
#define LOCKSTEP_TARGET_AMX \
  __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,amx-tile,amx-bf16"), min_vector_width(512)))
#else
#define LOCKSTEP_TARGET_AMX \
  __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,prefer-vector-width=512,amx-tile,amx-bf16")))
#endif
#define LOCKSTEP_INLINE_AMX LOCKSTEP_TARGET_AMX __attribute__((always_inline)) inline

namespace lockstep::amx {

// Configures this thread's tiles, 16 rows of 64 bytes each, for the lifetime of the object.
class Tiles {
  struct alignas(64) Shapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };

 public:
  LOCKSTEP_TARGET_AMX Tiles() {
    static constexpr Shapes kShapes;  // not on the stack: the compiler does not know that all of it is read
    _tile_loadconfig(&kShapes);
  }
  LOCKSTEP_TARGET_AMX ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// The sums of two panels: four tiles, one for each (A's half, B's half).
inline constexpr Index kSumsOfTile = kLanes * kLanes, kSumsOfPanels = 4 * kSumsOfTile;

// Tiles 0 to 3 hold sums, 4 and 5 a part of a, 6 and 7 a part of b.
LOCKSTEP_INLINE_AMX void load_a(const std::byte* step, Index part) {
  _tile_loadd(4, step + part * kPartBytes, kRowBytes);
  _tile_loadd(5, step + part * kPartBytes + kTileBytes, kRowBytes);
}
LOCKSTEP_INLINE_AMX void load_b(const std::byte* step, Index part) {
  _tile_loadd(6, step + part * kPartBytes, kRowBytes);
  _tile_loadd(7, step + part * kPartBytes + kTileBytes, kRowBytes);
}

// Tells the compiler that tile operations read and write memory.
inline void keep_order() { asm volatile("" ::: "memory"); }

// A product of tiles takes 64 cycles, in which the vector units are idle: after each comes a slot for other work. This
// work cannot be left to the end, because the multiplier's queue would fill the scheduler (measured: 960 vector
// operations after 96 tile operations triple their time; spread between them they add 8 %).
inline constexpr Index kSlotsOfStep = 6;
template <typename Slot> LOCKSTEP_INLINE_AMX void multiply_tiles(Slot& slot) {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  slot();
}

// sums = or += the product of a panel of a and one of b, over `steps` steps. Small products come first; only one
// operand's part changes at a time.
template <typename Slot> LOCKSTEP_INLINE_AMX void multiply_panels(Index steps, const std::byte* a, const std::byte* b,
                                                                  bool accumulate, float* sums, Slot& slot) {
  keep_order();
  if (accumulate) {
    _tile_loadd(0, sums, kRowBytes);
    _tile_loadd(1, sums + kSumsOfTile, kRowBytes);
    _tile_loadd(2, sums + 2 * kSumsOfTile, kRowBytes);
    _tile_loadd(3, sums + 3 * kSumsOfTile, kRowBytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (; steps > 0; --steps, a += kStepBytes, b += kStepBytes) {
    load_a(a, 2), load_b(b, 0), multiply_tiles(slot);
    load_a(a, 1), multiply_tiles(slot);
    load_b(b, 1), multiply_tiles(slot);
    load_a(a, 0), multiply_tiles(slot);
    load_b(b, 2), multiply_tiles(slot);
    load_b(b, 0), multiply_tiles(slot);
  }
  _tile_stored(0, sums, kRowBytes);
  _tile_stored(1, sums + kSumsOfTile, kRowBytes);
  _tile_stored(2, sums + 2 * kSumsOfTile, kRowBytes);
  _tile_stored(3, sums + 3 * kSumsOfTile, kRowBytes);
  keep_order();
}

}  // namespace lockstep::amx
