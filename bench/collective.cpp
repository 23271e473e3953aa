// Measures the speed of any collective by message size. The flags are those of all_reduce, and --op names the
// collective.
//
//   build/bench/collective --op all_gather --ranks 2 -b 4 -e 64M -f 4
//   build/bench/collective --op reduce --redop max --dtype int32 --root 1 --check
#include "bench/lib/collective_bench.h"
#include "lockstep/core/error.h"

namespace {

int run(int argc, char** argv) {
  return lockstep::bench::collective_main(lockstep::bench::Program::kCollective, argc, argv);
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("collective", run, argc, argv); }
