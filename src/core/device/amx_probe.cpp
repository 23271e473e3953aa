// Compiled for x86-64 only; no_amx.cpp takes its place elsewhere.
#include "src/core/device/amx_probe.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdint>

namespace lockstep {

namespace {

bool is_advertised() {
  constexpr unsigned kTiles = 1U << 24, kBfloat16 = 1U << 22;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) != 0 && (d & kBfloat16) != 0;
}

// See Intel's "Software Developer's Manual", volume 1, 13.3, and Linux' Documentation/arch/x86/xstate.rst.
bool is_permitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Multiplies 2 x 3 in one element of two tiles.
__attribute__((target("amx-tile,amx-bf16"))) bool multiplies() {
  struct alignas(64) Shapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {4, 4, 4};
    std::uint8_t rows[16] = {1, 1, 1};
  };
  // Static, because the compiler does not know what tile operations read and write.
  static constexpr Shapes kShapes;
  static constexpr std::uint32_t kTwo = 0x4000, kThree = 0x4040;
  static volatile float product;
  _tile_loadconfig(&kShapes);
  _tile_zero(0);
  _tile_loadd(1, &kTwo, 4);
  _tile_loadd(2, &kThree, 4);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, const_cast<float*>(&product), 4);
  _tile_release();
  asm volatile("" ::: "memory");
  return product == 6;
}

sigjmp_buf after_fault;

// While it lives, a fault of this thread jumps to after_fault, even if the thread blocks all signals.
class FaultTrap {
 public:
  FaultTrap() {
    struct sigaction trap = {};
    trap.sa_handler = [](int) { siglongjmp(after_fault, 1); };
    sigemptyset(&trap.sa_mask);
    sigset_t faults;
    sigemptyset(&faults);
    for (std::size_t i = 0; i < kFaults.size(); ++i)
      sigaction(kFaults[i], &trap, &before_[i]), sigaddset(&faults, kFaults[i]);
    pthread_sigmask(SIG_UNBLOCK, &faults, &blocked_before_);
  }
  ~FaultTrap() {
    pthread_sigmask(SIG_SETMASK, &blocked_before_, nullptr);
    for (std::size_t i = 0; i < kFaults.size(); ++i) sigaction(kFaults[i], &before_[i], nullptr);
  }
  FaultTrap(const FaultTrap&) = delete;
  FaultTrap& operator=(const FaultTrap&) = delete;

 private:
  static constexpr std::array kFaults = {SIGILL, SIGSEGV};
  std::array<struct sigaction, kFaults.size()> before_ = {};
  sigset_t blocked_before_ = {};
};

}  // namespace

bool runs_without_fault(bool (*trial)()) {
  const FaultTrap trap;
  return sigsetjmp(after_fault, 1) == 0 && trial();
}

bool amx_works() { return is_advertised() && is_permitted() && runs_without_fault(multiplies); }

}  // namespace lockstep
