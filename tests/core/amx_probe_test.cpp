// What stands between a processor that advertises AMX and its use.
#include "src/core/amx_probe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <vector>

#include "lockstep/core/cpu_dispatch.h"

namespace lockstep {
namespace {

TEST(AmxProbe, AnInstructionThatFaultsIsAnAnswer) {
#if defined(__x86_64__)
  struct sigaction before = {}, after = {};
  sigaction(SIGILL, nullptr, &before);
  for (int i = 0; i < 2; ++i)
    EXPECT_FALSE(runs_without_fault([] {
      asm volatile("ud2");
      return true;
    }));
  EXPECT_TRUE(runs_without_fault([] { return true; }));
  EXPECT_FALSE(runs_without_fault([] { return false; }));
  sigaction(SIGILL, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler) << "the trial's signal handler is left";
#else
  GTEST_SKIP() << "no x86-64: nothing is tried";
#endif
}

// Run by the test below, in a process of its own.
TEST(AmxProbe, DISABLED_WithASmallSignalStack) {
  std::vector<char> memory(2048);  // Linux' least; less than a signal frame with AMX's registers
  const stack_t stack = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
  EXPECT_FALSE(amx_works());
  EXPECT_LE(cpu_isa(), Isa::kAvx512);
  std::exit(::testing::Test::HasFailure() ? 1 : 0);  // before the stack's memory goes
}

TEST(AmxProbe, WhatTheSystemDoesNotLendIsNotUsed) {
  if (cpu_isa() < Isa::kAmx) GTEST_SKIP() << "needs a CPU with AMX, and a system that lends it (LOCKSTEP_ISA not lowered)";
  const std::string program = ::testing::internal::GetArgvs().front();
  const std::string command =
      fmt::format("'{}' --gtest_also_run_disabled_tests --gtest_filter=AmxProbe.DISABLED_WithASmallSignalStack", program);
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace lockstep
