// One model on two devices of one process, by the strategy that is named. Run it from the build's folder:
//
//   examples/strategies towers
//
//   1 physical CPU, 2 logical
//   epoch 0: mean loss 0.526
//   epoch 1: mean loss 0.001
//   epoch 2: mean loss 0.000
//   y = 2.00 x + 1.00
//   cpu:0 sent 960 and received 192 bytes
//   cpu:1 sent 192 and received 960 bytes
//
// mirrored and data_parallel print the same except for the bytes, and so does ddp, which has a process for each device:
//
//   launcher/lockrun -n 2 examples/strategies ddp
//
// and parameter_server, next to a process that holds the weights:
//
//   launcher/lockrun --ps 1 --workers 2 examples/strategies parameter_server
#include <lockstep/lockstep.h>

#include <cstdio>
#include <memory>
#include <string>

namespace ls = lockstep;

namespace {

constexpr std::int64_t kGlobalBatch = 8;

class Line : public ls::data::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  ls::data::Sample get(std::int64_t index, std::int64_t) const override {
    const float x = static_cast<float>(index) / 32 - 1;
    return {ls::Tensor::full({1}, x), ls::Tensor::full({1}, 2 * x + 1)};
  }
};

std::unique_ptr<ls::train::Strategy> make_strategy(const std::string& name) {
  return ls::train::make_strategy(
      name,
      {.model = [] { return std::make_unique<ls::nn::Linear>(1, 1); },
       .optimizer =
           [](std::vector<ls::NamedTensor> parameters) {
             return std::make_unique<ls::optim::SGD>(std::move(parameters),
                                                     ls::optim::SGDOptions{.lr = 0.3F, .momentum = 0.5F});
           },
       .loss = [](const ls::Tensor& outputs, const ls::Tensor& targets) { return ls::mse_loss(outputs, targets); }});
}

int train(int argc, char** argv) {
  const std::string name = argc == 2 ? argv[1] : "mirrored";
  const bool by_processes = ls::train::strategy_named(name).capabilities.has_ranks;
  if (!by_processes) ls::Device::configure({.cpu = 2});  // before the first tensor
  const auto job = ls::init_process_group({.device = &ls::cpu_device()});
  const auto strategy = make_strategy(name);
  if (auto* const server = strategy->as<ls::train::ParameterHolder>()) {
    server->serve();
    return 0;
  }
  const auto group = by_processes ? strategy->workers() : job;
  const bool prints = group->rank() == 0;
  if (prints) std::printf("%s\n", ls::describe_devices().substr(0, ls::describe_devices().find(';')).c_str());

  const Line line;
  ls::data::DistributedSampler sampler(line.size(), group->place(), {.seed = 1});
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    float sum = 0, steps = 0;
    for (auto& [x, y] : ls::data::DataLoader(line, sampler, {.batch_size = kGlobalBatch / group->world_size()}))
      sum += strategy->step(x, y), ++steps;
    float mean = sum / steps;
    group->all_reduce(std::span(&mean, 1), ls::ReduceOp::kAvg);
    if (prints) std::printf("epoch %d: mean loss %.3f\n", epoch, mean);
  }
  const auto weights = strategy->model().parameters();
  if (prints) std::printf("y = %.2f x + %.2f\n", weights[0].item(), weights[1].item());
  for (const ls::train::DeviceTraffic& each : strategy->traffic())
    if (prints)
      std::printf("%s sent %llu and received %llu bytes\n", each.device->name().c_str(),
                  static_cast<unsigned long long>(each.sent), static_cast<unsigned long long>(each.received));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("strategies", train, argc, argv); }
