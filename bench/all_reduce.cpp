// Measures the speed of all-reduce by message size; docs/benchmarks.md explains the columns.
//
//   build/bench/all_reduce --ranks 2 -b 4 -e 64M -f 4 [--op sum] [--plain] [--check] [--json]
//   lockrun -n 4 build/bench/all_reduce --transport tcp        mpirun -n 4 build/bench/all_reduce
//   build/bench/all_reduce --overlap -e 25M                    build/bench/all_reduce --compare -e 25M
//   build/bench/all_reduce --plot all.svg a.json b.json        results of --json-file as one picture
#include "bench/lib/collective_bench.h"
#include "lockstep/core/error.h"

namespace {

int run(int argc, char** argv) {
  return lockstep::bench::collective_main(lockstep::bench::Program::kAllReduce, argc, argv);
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("all_reduce", run, argc, argv); }
