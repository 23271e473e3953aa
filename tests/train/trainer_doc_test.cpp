// The code of docs/trainer.md and docs/checkpoints.md, and some of docs/strategies.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "lockstep/lockstep.h"
#include "tests/ddp/ranks.h"
#include "tests/support/temporary.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/trainer_parts.h"

namespace ls = lockstep;
namespace nn = lockstep::nn;

namespace {

class PrintRate : public ls::train::Callback {
 public:
  void on_epoch_end(ls::train::Trainer& trainer, std::int64_t epoch, const ls::train::Logs& logs) override {
    if (trainer.is_first_rank())
      lines.push_back(fmt::format("epoch {}: lr {}", epoch, ls::train::value_of(logs, "lr", "PrintRate")));
  }
  std::vector<std::string> lines;
};

TEST(TrainerDocExamples, TrainAndStop) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const ls::train::Quadrants points(256), others(64, 5);
  const ls::testing::Folder temporary;
  const std::string folder = temporary.path();

  ls::train::Trainer trainer([] {
    auto net = std::make_unique<nn::Sequential>();
    net->append_named<nn::Linear>("hidden", 2, 16, nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
    net->append_named<nn::Linear>("out", 16, 4);
    return net;
  });
  trainer.compile(
      {.optimizer =
           [](std::vector<ls::NamedTensor> parameters) {
             return std::make_unique<ls::optim::Nadam>(std::move(parameters), ls::optim::NadamOptions::keras(0.01F));
           },
       .loss = [](const ls::Tensor& logits, const ls::Tensor& labels) { return nn::cross_entropy(logits, labels); },
       .metrics = {{"accuracy", ls::train::Accuracy()}, {"top2", ls::train::TopK(2)}},
       .strategy = "ddp"});  // or "mirrored", "towers", ...
  const auto train = ls::data::Pipeline(points).shuffle(1000).batch(32).prefetch().cache();
  const auto validation = ls::data::Pipeline(others).batch(32);
  const ls::train::History& history = trainer.fit(train, {.epochs = 10, .validation = validation});

  EXPECT_EQ(history.epochs(), 10);
  EXPECT_GT(history.values("val_accuracy")[9], 0.9);

  auto stopping = std::make_shared<ls::train::EarlyStopping>(
      ls::train::EarlyStoppingOptions{.monitor = "val_accuracy", .patience = 2, .restore_best_weights = true});
  trainer.fit(train, {.epochs = 20,
                      .initial_epoch = trainer.epoch(),
                      .validation = validation,
                      .callbacks = {stopping, std::make_shared<ls::train::ModelCheckpoint>(folder + "/ckpt"),
                                    std::make_shared<ls::train::TensorBoard>(folder + "/events")}});
  if (trainer.is_first_rank()) trainer.history().plot(folder + "/history.svg");

  EXPECT_LE(trainer.epoch(), 20);
  for (const char* const name : {"/ckpt/latest", "/events", "/history.svg"})
    EXPECT_TRUE(std::filesystem::exists(folder + name)) << name;
  const auto rates = std::make_shared<PrintRate>();
  trainer.fit(train, {.callbacks = {rates}, .progress = false});
  EXPECT_EQ(rates->lines.size(), 1u);
}

// The end of a main().
int train_until_preempted(ls::train::Trainer& trainer, const ls::data::Pipeline& train, const std::string& folder) {
  trainer.fit(train, {.epochs = 20,
                      .initial_epoch = trainer.epoch(),
                      .callbacks = {std::make_shared<ls::train::Preemption>(folder + "/ckpt")}});
  if (trainer.is_preempted()) return ls::kPreemptedExitCode;
  return 0;
}

TEST(TrainerDocExamples, LeaveOnRequest) {
  const std::string folder = ls::testing::temporary("trainer-preempted");
  const auto run = [&] {
    ls::train::Trainer trainer(ls::train::make_dense);
    trainer.compile(ls::train::classifying("mirrored"));
    ls::should_stop();  // from here on the signal is remembered
    std::raise(SIGUSR2);
    std::_Exit(train_until_preempted(trainer, ls::data::Pipeline(ls::train::Quadrants(64)).batch(8), folder));
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(ls::kPreemptedExitCode), "");
  ls::train::Trainer trainer(ls::train::make_dense);
  trainer.compile(ls::train::classifying("mirrored"));
  EXPECT_EQ(trainer.load(folder + "/ckpt").value().step, 1);
  std::filesystem::remove_all(folder);
}

TEST(TrainerDocExamples, TrainInAScope) {
  const ls::train::Quadrants points(256);
  const ls::train::MirroredStrategy strategy;  // the GPUs, or where there are none the logical CPUs
  const auto trainer = strategy.scope([] {
    auto made = std::make_unique<ls::train::Trainer>([] { return std::make_unique<nn::Linear>(2, 4); });
    made->compile(
        {.optimizer =
             [](std::vector<ls::NamedTensor> parameters) {
               return std::make_unique<ls::optim::Adam>(std::move(parameters), ls::optim::AdamOptions{.lr = 0.05F});
             },
         .loss = [](const ls::Tensor& logits, const ls::Tensor& labels) { return nn::cross_entropy(logits, labels); }});
    return made;
  });
  trainer->fit(ls::data::Pipeline(points).shuffle().batch(8 * strategy.num_replicas_in_sync()), {.epochs = 3});

  EXPECT_EQ(trainer->strategy().name(), std::string("mirrored"));
  EXPECT_LT(trainer->history().values("loss")[2], trainer->history().values("loss")[0]);
}

TEST(StrategiesDocExamples, BranchesOnTheirDevices) {
  auto make_net = [] {
    auto net = std::make_unique<nn::Sequential>();
    net->append_named<nn::Linear>("stem", 2, 16, nn::LinearLayerOptions{.activation = ls::Activation::kReLU});
    auto& towers = net->append_named<nn::Branches>("towers");
    towers.append_named<nn::Linear>("left", 16, 8);   // on the first device
    towers.append_named<nn::Linear>("right", 16, 8);  // on the second, at the same time
    net->append_named<nn::Linear>("head", 16, 4);
    return net;
  };
  const std::vector<ls::Device*> cpus = ls::logical_devices(ls::DeviceKind::kCpu);
  const auto strategy = ls::train::make_strategy(
      "model_parallel",
      {.model = make_net,
       .optimizer =
           [](std::vector<ls::NamedTensor> parameters) {
             return std::make_unique<ls::optim::SGD>(std::move(parameters), ls::optim::SGDOptions{.lr = 0.1F});
           },
       .loss = [](const ls::Tensor& logits, const ls::Tensor& labels) { return nn::cross_entropy(logits, labels); }},
      {.devices = {cpus[0], cpus[1]}});
  const ls::Tensor x = ls::Tensor::full({4, 2}, 0.5F), labels = ls::Tensor::zeros({4}, ls::DType::kInt64);
  const float first_loss = strategy->step(x, labels);
  EXPECT_LT(strategy->step(x, labels), first_loss);

  ls::Device &first = ls::cpu_device(), &second = *cpus[1];
  nn::Linear left(2, 8), right(2, 8), head(16, 4);
  left.to(first), right.to(second), head.to(first);
  const ls::Tensors y = ls::parallel_apply({{[&] { return left(ls::to_device(x, first)); }, first},
                                            {[&] { return right(ls::to_device(x, second)); }, second}});
  const ls::Tensor logits = head(ls::concat({y[0], ls::to_device(y[1], first)}, 1));

  EXPECT_EQ(logits.shape(), (ls::Shape{4, 4}));
}

// Returns the loss of the validation.
double call_on_all(ls::train::Trainer& trainer, const ls::data::Pipeline& train, const ls::data::Pipeline& validation) {
  trainer.fit(train, {.epochs = 3, .validation = validation});  // a server serves until the workers come to its end
  const ls::train::Logs logs = trainer.evaluate(validation);    // the same on all processes
  const bool is_server = trainer.strategy().as<ls::train::ParameterHolder>() != nullptr;
  if (!is_server) trainer.model().eval();  // a server's model() is an error: it holds a part of the parameters
  return ls::train::value_of(logs, "loss", "the test");
}

// Each thread is a process of `lockrun --ps 1 --workers 2`.
TEST(TrainerDocExamples, TrainOverServers) {
  const ls::train::Quadrants points(64), others(32, 5);
  ls::testing::expect_all_well(ls::testing::run_ranks(3, "shm", [&](const std::shared_ptr<ls::ProcessGroup>& group) {
    ls::train::Trainer trainer(ls::train::make_dense);
    ls::train::CompileOptions options = ls::train::classifying("parameter_server");
    options.strategy_options = {.group = group, .parameter_server = {.servers = 1}};
    trainer.compile(options);
    const auto batches = [](const ls::train::Quadrants& set) { return ls::data::Pipeline(set).batch(32); };
    const double loss = call_on_all(trainer, batches(points), batches(others));
    EXPECT_EQ(trainer.history().epochs(), 3);
    EXPECT_EQ(loss, trainer.history().values("val_loss")[2]);
  }));
}

struct Net : nn::Module {
  nn::Linear out{2, 4};
  Net() { add("out", out); }
  ls::Tensor forward(const ls::Tensor& x) override { return out(x); }
};

TEST(StrategiesDocExamples, DataParallelIsAModule) {
  const std::vector<ls::Device*> devices = {&ls::cpu_device()};
  const ls::train::Quadrants points(64);
  auto loader = ls::data::Pipeline(points).batch(16).epoch(0);

  Net net;
  ls::train::DataParallel model(net, devices);  // the first device has the module
  ls::optim::SGD sgd(net.named_parameters(), {.lr = 0.1F});
  for (auto& [x, labels] : loader) {
    const ls::Tensor y = model(x);
    sgd.zero_grad();
    nn::cross_entropy(y, labels).backward();
    sgd.step();
  }
  EXPECT_TRUE(ls::has_grad(net.out.weight));
}

TEST(CheckpointDocExamples, SaveBesideTheTraining) {
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  const ls::testing::Folder temporary;
  const std::string folder = temporary.path();
  nn::Sequential net;
  net.append_named<nn::Linear>("out", 2, 4);
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::Adam adam(ddp.parameters(), {.lr = 0.01F});
  ls::data::DistributedSampler sampler(64, group->place());
  const auto train_step = [] {};

  ls::train::CheckpointParts state{.model = net, .optimizer = adam, .sampler = sampler, .ddp = ddp, .keep = 3};
  if (const auto saved = ls::train::load_checkpoint(folder, state)) state.step = saved->step;
  while (state.step < 1000) {
    train_step();
    if (++state.step % 100 == 0)
      ls::train::save_checkpoint(folder, state, {.background = true, .keep_for = std::chrono::hours(24)});
  }
  const std::string newest = ls::train::wait_for_saves();

  EXPECT_EQ(newest, folder + "/step-00001000");
  EXPECT_EQ(temporary.names().size(), 11U);
}

}  // namespace
