// One rank for tests of faults: all-reduces whose sums are known, and on request a failure of one rank.
//
//   collective_rank steps=100 count=1000 fail_rank=1 fail_at=5 how=kill
//
// how: exit (code 3), throw, segv, kill, stop (SIGSTOP), stay_away, leave (ends successfully, early), second_group
// (does not join one), abort (the others stay away), other_count, other_model (before the first step). The exit code is
// run_main's. `pause_ms` slows the steps down so that a test can interfere; `linger_ms` delays the end (only of
// `linger_rank`); guarded=1: under abort_on_error(). Its last line, or its error, is also appended to the file
// `report`.
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "tests/faults/rank_arguments.h"

namespace {

using lockstep::Error;
using lockstep::testing::go_wrong;
using Arguments = lockstep::testing::RankArguments;

// Small integers, whose sums are exact in any order.
float value_of(int rank, int step, std::size_t i) {
  return static_cast<float>((rank + 1) * (step % 7 + 1) + static_cast<int>(i % 13));
}

void check_sum(const std::vector<float>& sums, int ranks, int step) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float expected = 0;
    for (int rank = 0; rank < ranks; ++rank) expected += value_of(rank, step, i);
    if (sums[i] != expected) throw Error("step {}, element {}: {} instead of {}", step, i, sums[i], expected);
  }
}

void report(const Arguments& arguments, const std::string& line) {
  if (const std::string path = arguments.text("report"); !path.empty())
    std::ofstream(path, std::ios::app) << line << std::flush;
}

// One rank does not join; the others wait until the deadline.
void wait_in_second_group(lockstep::ProcessGroup& group, bool stays_away) {
  const auto second = group.split(0);
  if (stays_away) std::this_thread::sleep_for(std::chrono::minutes(10));
  try {
    second->barrier();
  } catch (const lockstep::TimeoutError&) {
  }
}

// One rank aborts its own wait for the others, which never join.
void abort_soon(std::shared_ptr<lockstep::ProcessGroup> group, bool aborts) {
  if (!aborts) std::this_thread::sleep_for(std::chrono::minutes(10));
  std::thread([group = std::move(group)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    group->abort("enough");
    std::this_thread::sleep_for(std::chrono::minutes(10));  // keeps the group: the process ends first
  }).detach();
}

int run_steps(const Arguments& arguments, const std::shared_ptr<lockstep::ProcessGroup>& group) {
  const int rank = group->rank(), ranks = group->world_size();
  const int steps = arguments.number("steps", 10);
  const bool fails = arguments.number("fail_rank", -1) == rank;
  const std::chrono::milliseconds pause(arguments.number("pause_ms", 0));
  if (arguments.text("how") == "other_model") {
    lockstep::nn::Linear model(8, fails ? 5 : 4);
    lockstep::DistributedDataParallel(model, group);
  }
  std::vector<float> data(static_cast<std::size_t>(arguments.number("count", 1000)));
  for (int step = 0; step < steps; ++step) {
    std::size_t count = data.size();
    if (fails && step == arguments.number("fail_at", 0)) {
      if (go_wrong(arguments.text("how"))) return 0;
      if (arguments.text("how") == "other_count") --count;
    }
    if (step == arguments.number("fail_at", 0) && arguments.text("how") == "second_group")
      wait_in_second_group(*group, fails);
    if (step == arguments.number("fail_at", 0) && arguments.text("how") == "abort") abort_soon(group, fails);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = value_of(rank, step, i);
    group->all_reduce(data.data(), count, lockstep::DType::kFloat32);
    check_sum(data, ranks, step);
    if (step == 0) {
      fmt::print("rank {} of {} is running\n", rank, ranks);
      std::fflush(stdout);
    }
    std::this_thread::sleep_for(pause);
  }
  if (arguments.number("linger_rank", rank) == rank)
    std::this_thread::sleep_for(std::chrono::milliseconds(arguments.number("linger_ms", 0)));
  const std::string done =
      fmt::format("rank {} of {} did {} steps over {}\n", rank, ranks, steps, group->backend().transport());
  fmt::print("{}", done);
  report(arguments, done);
  return 0;
}

int run(int argc, char** argv) {
  const Arguments arguments(argc, argv);
  try {
    const auto group = lockstep::init_process_group();
    if (arguments.number("guarded", 0) == 0) return run_steps(arguments, group);
    return lockstep::abort_on_error(*group, [&] { return run_steps(arguments, group); });
  } catch (const std::exception& error) {
    report(arguments, fmt::format("error: {}\n", error.what()));
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("collective_rank", run, argc, argv); }
