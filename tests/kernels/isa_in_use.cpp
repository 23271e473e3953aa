// Linked into the programs that test the CPU's kernels. If LOCKSTEP_ISA names an instruction set that this machine
// lacks, the program would repeat the tests of a lower one: it ends at once, with exit code 77, which Meson reports as
// skipped.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "tests/kernels/isa_names.h"

namespace lockstep::testing {
namespace {

class IsaInUse : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto wanted = env::text(env::kIsa);
    if (!wanted) return;
    try {
      if (*wanted == isa_name(cpu_isa())) return;
      std::printf("skipped: this machine has no %s, only %s\n", wanted->c_str(), isa_name(cpu_isa()));
      std::exit(77);
    } catch (const InvalidArgument& error) {
      std::printf("InvalidArgument: %s\n", error.what());
      std::exit(1);
    }
  }
};
[[maybe_unused]] ::testing::Environment* const kIsaInUse = ::testing::AddGlobalTestEnvironment(new IsaInUse);

}  // namespace
}  // namespace lockstep::testing
