// One process, with a thread and a copy of the model for each device; TensorFlow calls this MirroredStrategy.
//
//     device 0: variables, optimizer      device 1: variables, optimizer       mirrored: equal bits on all devices
//          |    first half of the batch        |    second half
//     forward, backward                   forward, backward                    a thread each
//          |                                   |
//     adds part 0 of all gradients        adds part 1 of all gradients         each reads its part from the others
//          |                                   |
//     takes part 1 from device 1          takes part 0 from device 0
//     optimizer                           optimizer
//
// Traffic: gradients, 2 (n - 1) / n of their bytes to and from each of n devices in each step, as in an all-reduce
// among processes, but only after backward has ended; the samples from where they are; after the step the buffers
// (statistics of batch normalisation) of device 0, if the model has any. Gradients are added in the order of the
// devices and scaled as under ddp on one machine, so that the weights have ddp's bits.
#include <algorithm>
#include <optional>

#include "lockstep/autograd/variable.h"
#include "lockstep/train/strategy_scope.h"
#include "src/optim/team.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/one_process/device_copies.h"

namespace lockstep::train {

namespace {

// A device has these next to its copy of the model; all gradients are in one piece of memory.
struct Mirror {
  std::unique_ptr<optim::Optimizer> optimizer;
  Tensor gradients, sum, from_peer;  // the last two: as large as a part
};

class Mirrored : public Strategy {
 public:
  static constexpr const char* kName = "mirrored";

  Mirrored(Training training, const StrategyOptions& options)
      : training_(std::move(training)), devices_(options.devices), copies_(kName, training_, devices_) {
    check_float32(kName, copies_[0].parameters);
    for (const NamedTensor& parameter : copies_[0].parameters) total_ += whole_lines(parameter.tensor.count());
    part_ = whole_lines((total_ + count() - 1) / count());
    for (int i = 0; i < copies_.count(); ++i) mirrors_.push_back(lay_out(copies_[i]));
    std::vector<optim::Optimizer*> optimizers;
    for (Mirror& mirror : mirrors_) optimizers.push_back(mirror.optimizer.get());
    team_.emplace(kName, optim::Team::Kind::kReplicas, optimizers);
    seen_ = versions();
  }

  const char* name() const override { return kName; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    copies_.check_samples(inputs, targets);
    if (versions() != seen_) update_replicas();
    copies_.scatter_changes(copies_[0]);
    for (Mirror& mirror : mirrors_) mirror.optimizer->zero_grad();
    const std::vector<float> losses =
        copies_.compute_gradients(training_, inputs, targets, loss_scaler_of(&optimizer()));
    copies_.zero_missing_gradients();
    if (count() > 1) {
      copies_.run([&](int device) { reduce_part(device); });
      copies_.run([&](int device) { gather_parts(device); });
      count_gradients();
    }
    team_->step([this](const auto& work) { copies_.run(work); });
    copies_.scatter_buffers(copies_[0]);
    seen_ = versions();
    return mean_of(losses, inputs);
  }

  nn::Module& model() override { return *copies_[0].model; }
  std::vector<nn::Module*> replicas() override {
    std::vector<nn::Module*> all;
    for (int i = 0; i < copies_.count(); ++i) all.push_back(copies_[i].model.get());
    return all;
  }
  optim::Optimizer& optimizer() override { return *mirrors_[0].optimizer; }
  void set_lr(float lr) override { team_->set_lr(lr); }
  void update_replicas() override {
    for (std::size_t i = 1; i < mirrors_.size(); ++i) {
      copy_values(model().state_dict(), copies_[static_cast<int>(i)].model->state_dict(), copies_.traffic());
      const std::vector<NamedTensor> state = mirrors_[i].optimizer->state();
      std::vector<NamedTensor> from = optimizer().state();
      from.resize(state.size());  // without the state of the LossScaler, which all share
      copy_values(from, state, copies_.traffic());
    }
    seen_ = versions();
  }
  std::vector<NamedLoss> step_losses() const override { return copies_.losses().values(); }
  std::vector<DeviceTraffic> traffic() const override { return copies_.traffic().all(); }

 private:
  // The versions of all that the caller may change between two steps: a checkpoint that is loaded changes weights,
  // buffers and the optimizer's state.
  struct Versions {
    std::vector<std::uint64_t> weights, state;
    bool operator==(const Versions&) const = default;
  };
  Versions versions() const {
    Versions all;
    for (const NamedTensor& parameter : copies_[0].parameters) all.weights.push_back(parameter.tensor.version());
    for (const NamedTensor& buffer : copies_[0].buffers) all.weights.push_back(buffer.tensor.version());
    for (const NamedTensor& state : mirrors_[0].optimizer->state()) all.state.push_back(state.tensor.version());
    return all;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(devices_.size()); }

  Mirror lay_out(const Replica& copy) {
    Mirror mirror{.gradients = Tensor::zeros({total_}, DType::kFloat32, *copy.device),
                  .sum = Tensor::empty({part_}, DType::kFloat32, *copy.device),
                  .from_peer = Tensor::empty({part_}, DType::kFloat32, *copy.device)};
    std::int64_t begin = 0;
    for (const NamedTensor& parameter : copy.parameters) {
      bind_grad(parameter.tensor, floats_of(mirror.gradients, begin, parameter.tensor.count()).buffer());
      begin += whole_lines(parameter.tensor.count());
    }
    mirror.optimizer = make_optimizer(kName, training_, copy.parameters);
    return mirror;
  }

  // Part `part` of the gradients of device `device`; the last ones may be shorter, or empty.
  Tensor part_of(std::size_t device, std::int64_t part) const {
    const std::int64_t begin = std::min(part * part_, total_), end = std::min(begin + part_, total_);
    return floats_of(mirrors_[device].gradients, begin, end - begin);
  }

  // Puts the mean of all devices' gradients into this device's part of its own.
  void reduce_part(int number) {
    const auto own = static_cast<std::size_t>(number);
    const Tensor part = part_of(own, number), sum = floats_of(mirrors_[own].sum, 0, part.count());
    const Tensor from_peer = floats_of(mirrors_[own].from_peer, 0, part.count());
    Device& device = *devices_[own];
    sum.copy_from(part_of(0, number));
    for (std::size_t i = 1; i < mirrors_.size(); ++i) {
      if (i != own) from_peer.copy_from(part_of(i, number));
      device.kernels().add(sum, i == own ? part : from_peer, sum, device.default_stream());
    }
    device.kernels().scale(sum, 1 / static_cast<float>(count()), part, device.default_stream());
    device.default_stream().synchronize();
  }

  void gather_parts(int number) {
    const auto own = static_cast<std::size_t>(number);
    for (std::size_t i = 0; i < mirrors_.size(); ++i)
      if (i != own) part_of(own, static_cast<std::int64_t>(i)).copy_from(part_of(i, static_cast<std::int64_t>(i)));
    devices_[own]->default_stream().synchronize();
  }

  // From each device to each other one: what is added there, and the means.
  void count_gradients() {
    for (std::size_t to = 0; to < devices_.size(); ++to)
      for (std::size_t from = 0; from < devices_.size(); ++from)
        copies_.traffic().add(*devices_[from], *devices_[to],
                              part_of(from, static_cast<std::int64_t>(to)).bytes() +
                                  part_of(from, static_cast<std::int64_t>(from)).bytes());
  }

  Training training_;
  std::vector<Device*> devices_;
  DeviceCopies copies_;                // the first is the model itself
  std::vector<Mirror> mirrors_;        // by copy
  std::optional<optim::Team> team_;    // of the mirrors' optimizers
  Versions seen_;                      // at the end of the last step
  std::int64_t total_ = 0, part_ = 0;  // floats: of all gradients, and of the part that a device adds
};

}  // namespace

MirroredStrategy::MirroredStrategy(std::vector<Device*> devices)
    : StrategyChoice(Mirrored::kName, {.devices = std::move(devices)}) {}

std::unique_ptr<Strategy> make_mirrored(Training training, const StrategyOptions& options) {
  return std::make_unique<Mirrored>(std::move(training), options);
}

}  // namespace lockstep::train
