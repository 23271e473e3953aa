// One rank of a training that fails again and again, for bench/peers/restart, which compares it with torchrun:
//   lockrun -n 2 --max-restarts 100 build/bench/restart --folder DIR --failures 10
//
// cifar10 of bench/lib/train_step_models.h, with a checkpoint every 5 steps. In each of the first `failures` attempts
// the last rank kills itself after 7 steps. Ranks append to DIR/events.RANK, as JSON lines with the monotonic clock's
// nanoseconds: {"step": 12, "attempt": 1, "ns": ...} after each step, {"killed": 12, ...} before the end, and
// "started", "connected" and "loaded" before an attempt's first step.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cxxopts.hpp>
#include <fstream>
#include <string>

#include "bench/lib/train_step_models.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;

constexpr std::int64_t kStepsOfAttempt = 7, kSaveEvery = 5;

class Events {
 public:
  explicit Events(const std::string& file) : file_(file, std::ios::app) {}
  void note(const char* what, std::int64_t step) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    file_ << fmt::format(R"({{"{}": {}, "attempt": {}, "ns": {}}})", what, step, ls::launch::attempt(),
                         std::chrono::nanoseconds(now).count())
          << std::endl;
  }

 private:
  std::ofstream file_;
};

int train(int argc, char** argv) {
  cxxopts::Options cli("restart", "A training that fails again and again");
  cxxopts::OptionAdder add = cli.add_options();
  add("folder", "for checkpoints and events", cxxopts::value<std::string>());
  add("failures", "attempts that fail", cxxopts::value<int>()->default_value("10"));
  const auto given = ls::examples::parse_naming_flags(cli, argc, argv);
  const std::string folder = given["folder"].as<std::string>();
  Events events(folder + "/events." + std::to_string(ls::env::integer("RANK", 0, 1'000'000).value_or(0)));
  events.note("started", 0);
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  events.note("connected", 0);
  ls::manual_seed(0);
  const ls::bench::TrainStepModel model = ls::bench::make_model("cifar10", group->rank());
  ls::DistributedDataParallel ddp(*model.module, group);
  const auto optimizer = ls::bench::make_optimizer("cifar10", ddp.parameters(), nullptr);
  ls::train::CheckpointParts parts{.model = *model.module, .optimizer = *optimizer, .ddp = ddp};
  if (const auto saved = ls::train::load_checkpoint(folder + "/checkpoints", parts)) parts.step = saved->step;
  events.note("loaded", parts.step);
  const bool fails = ls::launch::attempt() < given["failures"].as<int>();
  for (std::int64_t i = 0; i < kStepsOfAttempt; ++i) {
    optimizer->zero_grad();
    ls::nn::cross_entropy(ddp(model.inputs), model.labels).backward();
    optimizer->step();
    events.note("step", ++parts.step);
    if (parts.step % kSaveEvery == 0) ls::train::save_checkpoint(folder + "/checkpoints", parts);
  }
  if (fails && group->rank() == group->world_size() - 1) {
    events.note("killed", parts.step);
    std::raise(SIGKILL);
  }
  group->barrier();  // the others are in the middle of their work when a rank is lost
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("restart", train, argc, argv); }
