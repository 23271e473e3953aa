// TensorFlow's complete CIFAR-10 tutorial: its network, initialisation, losses, rates, moving averages, log lines and
// summaries (tensorflow/models, tutorials/image/cifar10, cifar10_multi_gpu_train.py and cifar10.py). The tutorial
// drives all GPUs from one process; here that is --strategy towers, and the default is a process for each device:
//
//   build/launcher/lockrun -n 2 build/examples/cifar10 --recipe classic --data data --train-dir cifar10_train
//
// or in one command, --num_gpus 2, which starts the ranks itself. It prints every 10 steps, from step 0 on, a line such
// as
//
//   2026-01-31 12:00:00.000000: step 10, loss = 4.61 (5120.0 examples/sec; 0.025 sec/batch)
//
// As in the tutorial, step 0 is the first one, so that the line of step 10 comes after eleven steps, and the names of
// flags may be written with underscores.
//
// In another terminal, cifar10_eval evaluates its checkpoints as they are saved.
#include "examples/cifar10/classic.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "examples/cifar10/classic_flags.h"
#include "examples/cifar10/classic_summaries.h"
#include "examples/cifar10/data.h"
#include "examples/cifar10/lines.h"
#include "examples/cifar10/train_dir.h"

namespace ls = lockstep;
namespace ex = lockstep::examples;

namespace {

constexpr double kEpochsPerDecay = 350;
constexpr float kRateDecay = 0.1f;

using Clock = std::chrono::steady_clock;

bool has_ranks(const ClassicFlags& flags) { return ls::train::strategy_named(flags.strategy).capabilities.has_ranks; }

// The devices of a strategy that drives several of them from one process: the first --num-gpus GPUs, or as many parts
// of the CPU. Call this before the first use of a device.
std::vector<ls::Device*> devices_of(const ClassicFlags& flags) {
  if (has_ranks(flags) || flags.num_gpus == 0) return {};
  const auto physical = ls::physical_devices();
  const bool has_gpu = std::any_of(physical.begin(), physical.end(),
                                   [](const auto& each) { return each.kind == ls::DeviceKind::kCuda; });
  if (!has_gpu && flags.num_gpus > 1) ls::Device::configure({.cpu = static_cast<int>(flags.num_gpus)});
  std::vector<ls::Device*> devices = ls::logical_devices(has_gpu ? ls::DeviceKind::kCuda : ls::DeviceKind::kCpu);
  if (static_cast<std::int64_t>(devices.size()) < flags.num_gpus)
    throw ls::InvalidArgument("--num-gpus {}: there are {} devices: {}", flags.num_gpus, devices.size(),
                              ls::describe_devices());
  devices.resize(static_cast<std::size_t>(flags.num_gpus));
  return devices;
}

void check_ranks(const ClassicFlags& flags, const ls::ProcessGroup& group) {
  if (has_ranks(flags) && flags.num_gpus > 0 && flags.num_gpus != group.world_size())
    throw ls::InvalidArgument(
        "--num-gpus {}: with --strategy {} each rank has one device, and this job has {} ranks: lockrun -n {}",
        flags.num_gpus, flags.strategy, group.world_size(), flags.num_gpus);
  if (!has_ranks(flags) && group.world_size() > 1)
    throw ls::InvalidArgument(
        "--strategy {}: it drives all devices from one process, and this job has {} ranks: start it without lockrun, "
        "or use --strategy ddp",
        flags.strategy, group.world_size());
}

// The network with which all replicas begin: with random weights, or those of the checkpoint.
std::unique_ptr<ClassicNet> initial_net(const ClassicFlags& flags) {
  ls::manual_seed(flags.seed);
  auto net = std::make_unique<ClassicNet>();
  if (flags.resume) ls::train::resume_checkpoint(flags.train_dir, {.model = *net});
  return net;
}

class ClassicTraining {
 public:
  ClassicTraining(const ClassicFlags& flags, const std::vector<ls::Device*>& devices,
                  std::shared_ptr<ls::ProcessGroup> group);
  void introduce();
  void resume();
  void run();

 private:
  std::unique_ptr<ls::train::Strategy> make_strategy(const std::vector<ls::Device*>& devices);
  ls::Tensor loss_of(const ls::Tensor& logits, const ls::Tensor& labels) const;
  void open_summaries();
  void train_step(const ls::Tensor& images, const ls::Tensor& labels);
  void log_step(std::int64_t number);
  void save();
  ClassicNet& net() { return dynamic_cast<ClassicNet&>(strategy_->model()); }

  const ClassicFlags& flags_;
  const std::shared_ptr<ls::ProcessGroup> group_;
  ls::train::Progress lines_;
  const Data data_;
  LossAverages averages_;
  const std::unique_ptr<ls::train::Strategy> strategy_;
  const std::int64_t devices_, global_batch_, per_epoch_;
  const ls::optim::StaircaseRate rate_;
  ls::optim::ExponentialMovingAverage ema_;
  ls::data::DistributedSampler sampler_;
  ls::train::SummaryWriter writer_ = ls::train::SummaryWriter::none();
  nlohmann::json every_loss_ = nlohmann::json::array();
  std::string saved_in_;
  std::int64_t step_ = 0, timed_steps_ = 0;
  float loss_ = 0;      // of this rank's images in the last step
  double seconds_ = 0;  // of timed_steps_, without summaries and checkpoints
  Clock::time_point begin_ = Clock::now();
};

std::int64_t steps_per_epoch(const ClassicFlags& flags, std::int64_t images, std::int64_t devices) {
  if (images < flags.batch * devices)
    throw ls::InvalidArgument("--batch-size {}: a step of {} devices needs {} images, but the data set has {}",
                              flags.batch, devices, flags.batch * devices, images);
  return images / (flags.batch * devices);
}

// int(batches per epoch x 350), where the batches are a fraction, as in the tutorial.
std::int64_t steps_per_decay(std::int64_t images, std::int64_t global_batch) {
  return static_cast<std::int64_t>(static_cast<double>(images) / static_cast<double>(global_batch) * kEpochsPerDecay);
}

ClassicTraining::ClassicTraining(const ClassicFlags& flags, const std::vector<ls::Device*>& devices,
                                 std::shared_ptr<ls::ProcessGroup> group)
    : flags_(flags),
      group_(std::move(group)),
      lines_({.enabled = group_->rank() == 0}),
      data_(open_data({.folder = flags.data, .generated = flags.generated, .seed = flags.seed})),
      strategy_(make_strategy(devices)),
      devices_(has_ranks(flags) ? group_->world_size() : static_cast<std::int64_t>(strategy_->devices().size())),
      global_batch_(flags.batch * devices_),
      per_epoch_(steps_per_epoch(flags, data_.train->size(), devices_)),
      rate_{flags.lr, kRateDecay, steps_per_decay(data_.train->size(), global_batch_)},
      ema_(net().named_parameters(), {.decay = 0.9999, .ramp = true}),
      sampler_(*data_.train, group_->place(), {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop}) {}

std::unique_ptr<ls::train::Strategy> ClassicTraining::make_strategy(const std::vector<ls::Device*>& devices) {
  const std::unique_ptr<ClassicNet> initial = initial_net(flags_);
  return ls::train::make_strategy(
      flags_.strategy,
      {.model =
           [&] {
             auto net = std::make_unique<ClassicNet>();
             net->load_state_dict(initial->state_dict());
             return net;
           },
       .optimizer =
           [this](std::vector<ls::NamedTensor> parameters) {
             return std::make_unique<ls::optim::SGD>(std::move(parameters), ls::optim::SGDOptions{.lr = flags_.lr});
           },
       .loss = [this](const ls::Tensor& logits, const ls::Tensor& labels) { return loss_of(logits, labels); }},
      {.devices = devices, .group = has_ranks(flags_) ? group_ : nullptr});
}

// The net adds its weight losses. Throws Error with step and rank if the loss is not finite: before backward, so that
// the weights do not change. Called on the threads of the devices.
ls::Tensor ClassicTraining::loss_of(const ls::Tensor& logits, const ls::Tensor& labels) const {
  const ls::Tensor cross_entropy = nn::cross_entropy(logits, labels);
  ls::train::check_finite(cross_entropy, step_ + 1, {.group = group_});
  return cross_entropy;
}

void ClassicTraining::introduce() {
  lines_.message(fmt::format("data: {}", data_.what));
  lines_.message(fmt::format("strategy {}, {} devices, {} images a step each; the rate falls every {} steps",
                             strategy_->name(), devices_, flags_.batch, rate_.steps_per_stair));
  if (flags_.log_device_placement && group_->rank() == 0) ls::train::log_device_placement(*strategy_);
}

// The weights are already those of the checkpoint. SGD without momentum has no state.
void ClassicTraining::resume() {
  const ls::train::CheckpointState saved = ls::train::resume_checkpoint(
      flags_.train_dir,
      {.model = net(), .ema = ema_, .sampler = sampler_, .ddp = strategy_->wrapper(), .group = group_});
  const ls::data::SamplerState place = sampler_.state();
  if (place.seed != flags_.seed ||
      (place.epoch * per_epoch_) * global_batch_ + place.consumed != saved.step * global_batch_)
    throw ls::InvalidArgument(
        "--resume: {} is at step {}, with --seed {}, in epoch {} after {} images, which does not fit this run ({} "
        "images a step, {} steps an epoch, --seed {}): use the --batch-size, --seed, data set and number of devices of "
        "the saved run",
        saved.folder, saved.step, place.seed, place.epoch, place.consumed, global_batch_, per_epoch_, flags_.seed);
  step_ = saved.step;
  saved_in_ = saved.folder;
  lines_.message(fmt::format("resumed at step {} from {}", step_, saved.folder));
}

void ClassicTraining::run() {
  if (flags_.summary_every > 0) open_summaries();
  begin_ = Clock::now();
  while (step_ < flags_.steps) {
    if (step_ % per_epoch_ == 0) sampler_.set_epoch(step_ / per_epoch_);  // else a checkpoint set its position
    for (auto& [images, labels] : ls::data::DataLoader(*data_.train, sampler_,
                                                       {.batch_size = global_batch_ / group_->world_size(),
                                                       .device = strategy_->devices().front(),
                                                       .drop_last = true,
                                                       .prefetch = 2,
                                                       .num_workers = static_cast<int>(flags_.input_threads)})) {
      train_step(images, labels);
      if (step_ == flags_.steps) break;
    }
  }
  writer_.close();
  lines_.message("checkpoint in " + saved_in_);
  write_json_file(flags_, *group_,
                  {{"steps", step_}, {"devices", devices_}, {"losses", every_loss_}, {"checkpoint", saved_in_}});
}

// The graph is in the file before the first step, as the tutorial's writer puts it there.
void ClassicTraining::open_summaries() {
  writer_ = ls::train::SummaryWriter(flags_.train_dir, {.group = group_, .purge_step = step_});
  if (!writer_.writes()) return;
  ClassicNet graph;
  writer_.add_graph(graph, ls::Shape({1, 24, 24, 3}));
}

// Steps count from 0 in lines and summaries, as in the tutorial; checkpoints have the number of steps done.
void ClassicTraining::train_step(const ls::Tensor& images, const ls::Tensor& labels) {
  strategy_->set_lr(rate_.at(step_));
  loss_ = strategy_->step(images, labels);
  ema_.update();
  sampler_.advance(global_batch_);
  ++step_;
  seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
  ++timed_steps_;

  every_loss_.push_back(loss_);
  std::vector<ls::train::NamedLoss> losses = strategy_->step_losses();
  losses.front().name = "cross_entropy";
  averages_.update(losses);
  const std::int64_t number = step_ - 1;
  if (number % flags_.log_every == 0) log_step(number);
  if (flags_.summary_every > 0 && number % flags_.summary_every == 0)
    write_summary(writer_, net(), {number, rate_.at(number), losses, averages_, images});
  if (number % flags_.save_every == 0 || step_ == flags_.steps) save();
  begin_ = Clock::now();
}

// The loss is the mean over all images of the step; the times are means over the steps since the previous line.
void ClassicTraining::log_step(std::int64_t number) {
  group_->all_reduce(std::span(&loss_, 1), ls::ReduceOp::kAvg);
  const double each = seconds_ / static_cast<double>(timed_steps_);
  lines_.message(fmt::format("{}: step {}, loss = {:.2f} ({:.1f} examples/sec; {:.3f} sec/batch)", time_now(), number,
                             loss_, static_cast<double>(global_batch_) / each, each / static_cast<double>(devices_)));
  seconds_ = 0;
  timed_steps_ = 0;
}

void ClassicTraining::save() {
  writer_.flush();  // so that TensorBoard has every step that the checkpoint has
  const std::string written = ls::train::save_checkpoint(flags_.train_dir, {.model = net(),
                                                                            .ema = ema_,
                                                                            .sampler = sampler_,
                                                                            .ddp = strategy_->wrapper(),
                                                                            .step = step_,
                                                                            .epoch = sampler_.epoch(),
                                                                            .group = group_,
                                                                            .keep = static_cast<int>(flags_.keep)});
  if (!written.empty()) saved_in_ = written;  // a disk that fails is a warning
}

int train(const ClassicFlags& flags) {
  const std::vector<ls::Device*> devices = devices_of(flags);
  const auto group =
      has_ranks(flags) ? ls::init_process_group() : ls::init_process_group({.device = &ls::cpu_device()});
  check_ranks(flags, *group);
  check_json_file(flags, *group);
  prepare_train_dir(flags.train_dir, *group,
                    flags.resume      ? TrainDir::kResume
                    : flags.overwrite ? TrainDir::kOverwrite
                                      : TrainDir::kNew);
  ClassicTraining training(flags, devices, group);
  training.introduce();
  if (flags.resume) training.resume();
  training.run();
  return 0;
}

}  // namespace

int run_classic(int argc, char** argv) {
  ClassicFlags flags;
  flags.steps = 100'000;
  flags.batch = 128;
  flags.log_every = 10;
  flags.lr = 0.1f;
  if (!read_classic_flags(argc, argv, flags)) return 0;
  const auto start = [&flags](int, char**) { return train(flags); };
  // --num_gpus 2: unless a launcher has made this process a rank, it starts a rank for each device.
  if (has_ranks(flags) && flags.num_gpus > 1)
    return ls::launch::spawn(static_cast<int>(flags.num_gpus), argc, argv, start);
  return start(argc, argv);
}
