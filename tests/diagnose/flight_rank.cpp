// A failing rank: flight_rank HOW. All ranks make three all_reduces; then rank 1 stays in its own code for "hang",
// makes another call for "other", and dies for "kill". "wait" is like "hang", but no rank gives up.
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"

namespace {

using namespace lockstep;

int run(int, char** argv) {
  const std::string how = argv[1];
  const auto group = init_process_group({.timeout = std::chrono::seconds(how == "wait" ? 300 : 2)});
  std::vector<float> gradients(1000);
  const auto reduce = [&](int bucket) {
    group->all_reduce(gradients.data(), gradients.size(), DType::kFloat32, ReduceOp::kAvg,
                      {.purpose = {"bucket", bucket}});
  };
  for (int bucket = 0; bucket < 3; ++bucket) reduce(bucket);
  std::printf("rank %d has three\n", group->rank());
  std::fflush(stdout);
  if (group->rank() == 1)
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // by then the others are in the fourth all_reduce
  if (how == "wait") {                                            // longer than any test
    std::puts(group->rank() == 1 ? "rank 1 is elsewhere" : "rank 0 is in the fourth");
    std::fflush(stdout);
    if (group->rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(5));
  }
  if (group->rank() == 1 && how == "hang") std::this_thread::sleep_for(std::chrono::minutes(5));
  if (group->rank() == 1 && how == "other") group->broadcast(gradients.data(), gradients.size(), DType::kFloat32, 0);
  if (group->rank() == 1 && how == "kill") std::raise(SIGKILL);
  reduce(3);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("flight_rank", run, argc, argv); }
