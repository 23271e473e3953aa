// How much a training step grows while a checkpoint is written in the background, for bench/peers/save:
//   lockrun -n 2 build/bench/save --folder DIR --mb 500 --saves 3
//
// Four layers of equal width with Adam, so that weights and state have `mb` megabytes; 32 samples per rank. Before and
// after each save come 12 steps. A step counts as one with a save if it lies between the save's call and the moment at
// which the checkpoint has its name; if there is none, during_save_ms is null. Rank 0 prints a JSON line.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cxxopts.hpp>
#include <filesystem>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "bench/lib/bench_common.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 12, kWarmUp = 3;
constexpr std::int64_t kBatch = 32;

double ms(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

// The moment at which a folder appears, found by a thread that looks every 5 ms.
class Appearance {
 public:
  explicit Appearance(std::string folder)
      : folder_(std::move(folder)), watcher_([this](const std::stop_token& end) { watch(end); }) {}
  // After the save has ended.
  Clock::time_point moment() {
    watcher_.request_stop();
    watcher_.join();
    return moment_;
  }

 private:
  void watch(const std::stop_token& end) {
    while (!std::filesystem::exists(folder_) && !end.stop_requested())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    moment_ = Clock::now();
  }
  const std::string folder_;
  Clock::time_point moment_;
  std::jthread watcher_;
};

struct Step {
  Clock::time_point begin, end;
};

int measure(int argc, char** argv) {
  cxxopts::Options cli("save", "Times steps during a background save");
  cxxopts::OptionAdder add = cli.add_options();
  add("folder", "for checkpoints", cxxopts::value<std::string>());
  add("mb", "megabytes of weights and optimizer state", cxxopts::value<int>()->default_value("500"));
  add("saves", "how many", cxxopts::value<int>()->default_value("3"));
  const auto given = ls::examples::parse_naming_flags(cli, argc, argv);
  const std::string folder = given["folder"].as<std::string>();
  const int mb = given["mb"].as<int>(), saves = given["saves"].as<int>();
  if (mb < 1 || saves < 1) throw ls::InvalidArgument("save: --mb and --saves must be positive");

  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const auto width = static_cast<std::int64_t>(std::sqrt(mb * 1e6 / 12 / 4));  // 4 bytes of weight, 8 of Adam's state
  ls::manual_seed(0);
  ls::nn::Sequential net;
  for (int layer = 0; layer < 4; ++layer)
    net.append<ls::nn::Linear>(width, width, ls::nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::Adam adam(ddp.parameters(), {.lr = 1e-4F});
  const ls::Tensor inputs = ls::Tensor::full({kBatch, width}, 0.5F), targets = ls::Tensor::zeros({kBatch, width});
  std::vector<Step> steps;
  const auto train = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const auto begin = Clock::now();
      adam.zero_grad();
      ls::nn::mse_loss(ddp(inputs), targets).backward();
      adam.step();
      steps.push_back({begin, Clock::now()});
    }
  };
  ls::train::CheckpointParts parts{.model = net, .optimizer = adam, .ddp = ddp};
  train(kWarmUp);
  steps.clear();
  std::vector<double> alone, during, calls, writes;
  for (parts.step = 0; parts.step <= saves; ++parts.step) {
    train(kSteps);
    group->barrier();
    Appearance appearance(fmt::format("{}/step-{:08}", folder, parts.step));
    const auto begin = Clock::now();
    ls::train::save_checkpoint(folder, parts, {.background = true, .on_error = ls::train::OnSaveError::kStop});
    const auto end = Clock::now();
    train(kSteps);
    ls::train::wait_for_saves();
    const auto written = appearance.moment();
    for (const Step& step : steps)
      if (parts.step > 0 && (step.begin < end || step.end < written))  // the first save allocates
        (step.begin < end ? alone : during).push_back(ms(step.end - step.begin));
    steps.clear();
    if (parts.step == 0) continue;
    calls.push_back(ms(end - begin));
    writes.push_back(ms(written - begin));
  }
  const auto median = [](const std::vector<double>& values) {
    return values.empty() ? "null" : fmt::format("{:.2f}", ls::bench::quantile(values, 0.5));
  };
  if (group->rank() == 0)
    fmt::print(R"({{"program": "lockstep", "step_ms": {}, "during_save_ms": {}, "call_ms": {}, "write_ms": {}}})"
               "\n",
               median(alone), median(during), median(calls), median(writes));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("save", measure, argc, argv); }
