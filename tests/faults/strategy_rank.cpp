// One process of an endless training by a strategy, with a failure on request:
//
//   strategy_rank strategy=model_parallel fail_rank=1 fail_at=25 how=kill stamp=FILE
//
// how: the values of go_wrong(); tower: the thread of the second of two devices throws. The stamp is as in
// training_rank.cpp. A parameter server, which makes no steps, fails a moment after the workers' first one.
#include <csignal>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/faults/rank_arguments.h"

namespace {

namespace ls = lockstep;
using ls::testing::RankArguments;

constexpr std::int64_t kWidth = 16, kBatch = 8;

class Training {
 public:
  explicit Training(const RankArguments& arguments)
      : arguments_(arguments),
        how_(arguments.text("how")),
        fails_(arguments.number("fail_rank", -1) == group_->rank()) {
    const std::string name = arguments.text("strategy");
    ls::train::StrategyOptions options;
    if (name == "model_parallel") options = {.group = group_, .micro_batches = 4};
    if (name == "parameter_server") options.parameter_server.staleness = 1;
    strategy_ = ls::train::make_strategy(name, parts(), options);
  }

  int run() {
    if (auto* const server = strategy_->as<ls::train::ParameterHolder>()) {
      std::thread([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        misbehave();
      }).detach();
      server->serve();
      return 0;
    }
    const ls::Tensor inputs = ls::Tensor::full({kBatch, kWidth}, 1), targets = ls::Tensor::full({kBatch, kWidth}, 2);
    for (int step = 0; step < 1'000'000; ++step) {
      is_time_ = step == arguments_.number("fail_at", -1);
      if (is_time_ && how_ != "tower") misbehave();
      strategy_->step(inputs, targets);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return 0;
  }

 private:
  ls::train::Training parts() {
    return {.model =
                [] {
                  auto net = std::make_unique<ls::nn::Sequential>();
                  for (int i = 0; i < 3; ++i) net->append<ls::nn::Linear>(kWidth, kWidth);
                  return net;
                },
            .optimizer =
                [](std::vector<ls::NamedTensor> parameters) {
                  return std::make_unique<ls::optim::SGD>(std::move(parameters), ls::optim::SGDOptions{.lr = 0.001F});
                },
            .loss =
                [this](const ls::Tensor& outputs, const ls::Tensor& targets) {
                  if (is_time_ && how_ == "tower" && outputs.device().index() == 1) {
                    stamp();
                    throw ls::Error("this tower has had enough");
                  }
                  return ls::mse_loss(outputs, targets);
                }};
  }

  void stamp() const {
    std::ofstream(arguments_.text("stamp"))
        << std::chrono::steady_clock::now().time_since_epoch().count() << std::flush;
  }

  void misbehave() const {
    if (!fails_) return;
    stamp();
    if (ls::testing::go_wrong(how_)) std::exit(0);
  }

  const RankArguments& arguments_;
  std::shared_ptr<ls::ProcessGroup> group_ = ls::init_process_group({.device = &ls::cpu_device()});
  std::string how_;
  bool fails_, is_time_ = false;
  std::unique_ptr<ls::train::Strategy> strategy_;
};

int run(int argc, char** argv) {
  std::signal(SIGTERM, SIG_IGN);  // lockrun gives the survivors of a loss time to report what they know
  const RankArguments arguments(argc, argv);
  if (arguments.text("strategy") == "towers") ls::Device::configure({.cpu = 2});
  return Training(arguments).run();
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("strategy_rank", run, argc, argv); }
