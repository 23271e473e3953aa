// A CPU without AVX2 can run the baseline: in this program, which contains the library, only functions that are
// compiled for a later instruction set have instructions of one. A template that is instantiated in such a function and
// used elsewhere, too, would show here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "tests/support/sanitized.h"

namespace lockstep::testing {
namespace {

// "0000000000001234 <lockstep::avx2::f(long)>:"
bool begins_function(std::string_view line) { return line.ends_with(">:") && line.find(" <") != line.npos; }

// "  1234:	vaddps %ymm0,%ymm1,%ymm2": those with VEX prefix begin with v, those of masks and AMX with k and t.
bool is_of_later_sets(std::string_view line) {
  const std::size_t tab = line.find('\t');
  if (tab == line.npos) return false;
  const std::string_view instruction = line.substr(tab + 1);
  return instruction.starts_with("v") || instruction.starts_with("tile") || instruction.starts_with("tdp") ||
         instruction.starts_with("kmov") || instruction.find("%ymm") != line.npos;
}

// By name; the arguments of templates do not count.
bool may_have_them(std::string_view function) {
  const std::string_view name = function.substr(0, function.find('<', function.find('<') + 1));
  for (const char* part : {"lockstep::avx2::", "lockstep::avx512::", "lockstep::amx::", "_avx2", "_avx512",
                           "lockstep::(anonymous namespace)::multiplies()"})  // the last one is amx_probe.cpp's trial
    if (name.find(part) != name.npos) return true;
  return false;
}

TEST(Baseline, HasNoInstructionsOfLaterSets) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "there is one build on this processor";
#endif
  if (kSanitized) GTEST_SKIP() << "a sanitizer's build has the same functions as others";
  if (std::system("objdump --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "objdump is missing (package binutils)";
  const std::string command = "objdump -d -C --no-show-raw-insn '" + ::testing::internal::GetArgvs().front() + "'";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::set<std::string> wrong, right;
  std::string function, line;
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) {
    line += part.data();
    if (line.back() != '\n') continue;
    line.pop_back();
    if (begins_function(line))
      function = line;
    else if (is_of_later_sets(line))
      (may_have_them(function) ? right : wrong).insert(function);
    line.clear();
  }
  EXPECT_EQ(pclose(pipe), 0);
  for (const std::string& name : wrong) ADD_FAILURE() << name << " needs more than the baseline";
  EXPECT_GT(right.size(), 300U) << "the functions of later instruction sets were not found";
}

}  // namespace
}  // namespace lockstep::testing
