// The checks between a processor that advertises AMX and its use. Compiled for x86-64 only.
#include "src/core/device/amx_probe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/core/cpu_dispatch.h"

namespace lockstep {
namespace {

TEST(AmxProbe, AnInstructionThatFaultsIsAnAnswer) {
  struct sigaction before = {}, after = {};
  sigset_t all, mask_before, mask_after;
  sigfillset(&all);
  for (const bool blocks_all : {false, true}) {
    if (blocks_all) pthread_sigmask(SIG_SETMASK, &all, nullptr);
    sigaction(SIGILL, nullptr, &before), pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
    for (int i = 0; i < 2; ++i)
      EXPECT_FALSE(runs_without_fault([] {
        asm volatile("ud2");
        return true;
      }));
    EXPECT_FALSE(runs_without_fault([] { return *reinterpret_cast<volatile char*>(std::uintptr_t{1} << 63) == 0; }));
    EXPECT_TRUE(runs_without_fault([] { return true; }));
    EXPECT_FALSE(runs_without_fault([] { return false; }));
    sigaction(SIGILL, nullptr, &after), pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
    EXPECT_EQ(after.sa_handler, before.sa_handler) << "the trial's signal handler is still set";
    EXPECT_EQ(sigismember(&mask_after, SIGILL), blocks_all ? 1 : 0);
  }
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

constexpr int kAsExpected = 42;

// The exit code of this program when it runs such a test, in a separate process.
int exit_code_of(const std::string& environment, const std::string& test) {
  const std::string program = ::testing::internal::GetArgvs().front();
  const int status =
      std::system(fmt::format("{} '{}' --gtest_also_run_disabled_tests --gtest_filter=AmxProbe.DISABLED_{}",
                              environment, program, test)
                      .c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

[[noreturn]] void end() { std::_Exit(::testing::Test::HasFailure() ? 1 : kAsExpected); }

TEST(AmxProbe, DISABLED_WithASmallSignalStack) {
  std::vector<char> memory(2048);  // Linux' minimum, which is less than a signal frame with AMX's registers
  const stack_t stack = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  if (sigaltstack(&stack, nullptr) != 0) end();  // a kernel that refuses such stacks in any case
  EXPECT_FALSE(amx_works());
  EXPECT_LE(cpu_isa(), Isa::kAvx512);
  end();
}

TEST(AmxProbe, WhatTheSystemDoesNotLendIsNotUsed) {
  if (cpu_isa() < Isa::kAmx)
    GTEST_SKIP() << "needs a CPU with AMX, and a system that grants it (LOCKSTEP_ISA not lowered)";
  EXPECT_EQ(exit_code_of("", "WithASmallSignalStack"), kAsExpected);
}

TEST(AmxProbe, DISABLED_Lowered) {
  EXPECT_LE(cpu_isa(), Isa::kAvx512);
  std::uint64_t permitted = 0;
  constexpr int kGetPermission = 0x1022, kTileData = 18;
  EXPECT_EQ(syscall(SYS_arch_prctl, kGetPermission, &permitted), 0);
  EXPECT_EQ(permitted >> kTileData & 1, 0U) << "the process requested AMX";
  end();
}

TEST(AmxProbe, IsNotAskedForWhereItIsNotWanted) {
  if (cpu_isa() < Isa::kAmx)
    GTEST_SKIP() << "needs a CPU with AMX, and a system that grants it (LOCKSTEP_ISA not lowered)";
  for (const char* const isa : {"avx512", "avx2", "baseline"})
    EXPECT_EQ(exit_code_of(fmt::format("LOCKSTEP_ISA={}", isa), "Lowered"), kAsExpected) << isa;
}

}  // namespace
}  // namespace lockstep
