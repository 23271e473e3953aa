// Every operator of core/operators.def on the device under test, against the plain CPU kernel: on the cases in cases/,
// in each type of floats that the operator takes. A line more in the list is a test more here.
#include "tests/kernels/twin.h"

namespace lockstep::testing {
namespace {

class OperatorTwins : public TwinTest {
 protected:
  void run(void (*add)(Cases&)) {
    for (const DType type : kTwinTypes) {
      if (type != DType::kFloat32 && GetParam() == "emulated_backwards")
        break;  // the threads' order does not depend on the type
      Cases all(type, {});
      add(all);
      if (type == DType::kFloat32) {
        ASSERT_FALSE(all.tests().empty()) << "nothing is tried";
        ASSERT_FALSE(all.rows().empty()) << "nothing is timed";
      }
      for (const Cases::Test& test : all.tests()) {
        compare(fmt::format("{}: {}", name_of(type), test.what), test.bounds, test.work, type);
        if (HasFatalFailure()) return;
      }
    }
  }
};
LOCKSTEP_TWINS(OperatorTwins);

#define LOCKSTEP_OPERATOR(name, ...) \
  TEST_P(OperatorTwins, name) { run(cases::name); }
#include "lockstep/core/operators.def"

}  // namespace
}  // namespace lockstep::testing
