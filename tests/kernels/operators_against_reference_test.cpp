// Compares every operator of core/operators.def on the device under test with the plain CPU kernel: on the cases in
// cases/, in each float type that the operator takes. A new line in the list adds a test here.
#include "tests/kernels/reference_comparison.h"

namespace lockstep::testing {
namespace {

class OperatorsAgainstReference : public ReferenceComparison {
 protected:
  void run(void (*add)(Cases&)) {
    for (const DType type : kComparedTypes) {
      if (type != DType::kFloat32 && GetParam() == "emulated_backwards")
        break;  // the threads' order does not depend on the type
      Cases all(type, {});
      add(all);
      if (type == DType::kFloat32) {
        ASSERT_FALSE(all.tests().empty()) << "there are no tests";
        ASSERT_FALSE(all.rows().empty()) << "there are no benchmark rows";
      }
      for (const Cases::Test& test : all.tests()) {
        compare(fmt::format("{}: {}", name_of(type), test.what), test.bounds, test.work, type);
        if (HasFatalFailure()) return;
      }
    }
  }
};
LOCKSTEP_COMPARE_WITH_REFERENCE(OperatorsAgainstReference);

#define LOCKSTEP_OPERATOR(name, ...) \
  TEST_P(OperatorsAgainstReference, name) { run(cases::name); }
#include "lockstep/core/operators.def"

}  // namespace
}  // namespace lockstep::testing
