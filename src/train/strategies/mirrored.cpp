// One process, a thread and a replica for each device; what TensorFlow calls MirroredStrategy.
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
// What travels: gradients, 2 (n - 1) / n of their bytes to and from each of n devices a step, as an all-reduce among
// processes, but only once backward has ended; the samples from where they are; after the step buffers (statistics of
// batch normalisation) from device 0, whose own they are, where the model has some. Gradients are added in the order of
// the devices and scaled as ddp's on one machine, so that the weights have ddp's bits.
#include <algorithm>
#include <optional>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/random.h"
#include "src/optim/team.h"
#include "src/train/strategies/device_threads.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

namespace {

// A device's copy of all variables, its optimizer, and its gradients in one piece of memory.
struct Mirror {
  Replica replica;
  std::unique_ptr<optim::Optimizer> optimizer;
  Tensor gradients, sum, from_peer;  // the last two: as large as a part
  float loss = 0;
};

class Mirrored : public Strategy {
 public:
  static constexpr const char* kName = "mirrored";

  Mirrored(Training training, const StrategyOptions& options)
      : training_(std::move(training)),
        devices_(options.devices),
        traffic_(devices_),
        threads_(static_cast<int>(devices_.size())) {
    for (Replica& replica : make_replicas(training_, devices_)) mirrors_.push_back({std::move(replica)});
    check_float32(kName, mirrors_[0].replica.parameters);
    for (const NamedTensor& parameter : mirrors_[0].replica.parameters) total_ += whole_lines(parameter.tensor.count());
    part_ = whole_lines((total_ + count() - 1) / count());
    for (Mirror& mirror : mirrors_) lay_out(mirror);
    std::vector<optim::Optimizer*> optimizers;
    for (Mirror& mirror : mirrors_) {
      replicas_.push_back(&mirror.replica);
      optimizers.push_back(mirror.optimizer.get());
    }
    team_.emplace(kName, optim::Team::Kind::kReplicas, optimizers);
    seen_ = versions();
  }

  const char* name() const override { return kName; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    check_batch(kName, inputs, targets, devices_.size());
    if (versions() != seen_) update_replicas();
    for (std::size_t i = 1; i < mirrors_.size(); ++i) follow_model(mirrors_[0].replica, mirrors_[i].replica, traffic_);
    threads_.run([&](int device) { compute(device, inputs, targets); });
    zero_missing_gradients(replicas_);
    if (count() > 1) {
      threads_.run([&](int device) { reduce_part(device); });
      threads_.run([&](int device) { gather_parts(device); });
    }
    team_->step([this](const auto& work) { threads_.run(work); });
    for (std::size_t i = 1; i < mirrors_.size(); ++i)
      copy_values(mirrors_[0].replica.buffers, mirrors_[i].replica.buffers, traffic_);
    count_traffic(inputs, targets);
    seen_ = versions();
    double sum = 0;
    for (const Mirror& mirror : mirrors_) sum += mirror.loss;
    return static_cast<float>(sum / static_cast<double>(count()));
  }

  nn::Module& model() override { return *mirrors_[0].replica.model; }
  std::vector<nn::Module*> replicas() override {
    std::vector<nn::Module*> all;
    for (const Mirror& mirror : mirrors_) all.push_back(mirror.replica.model.get());
    return all;
  }
  optim::Optimizer& optimizer() override { return *mirrors_[0].optimizer; }
  void set_lr(float lr) override { team_->set_lr(lr); }
  void update_replicas() override {
    const Mirror& first = mirrors_.front();
    for (std::size_t i = 1; i < mirrors_.size(); ++i) {
      copy_values(first.replica.model->state_dict(), mirrors_[i].replica.model->state_dict(), traffic_);
      const std::vector<NamedTensor> state = mirrors_[i].optimizer->state();
      std::vector<NamedTensor> from = first.optimizer->state();
      from.resize(state.size());  // without the state of the LossScaler, which all share
      copy_values(from, state, traffic_);
    }
    seen_ = versions();
  }
  std::vector<DeviceTraffic> traffic() const override { return traffic_.all(); }

 private:
  // Of what the caller may change between two steps: a checkpoint that is loaded changes weights, buffers and the
  // optimizer's state.
  struct Versions {
    std::vector<std::uint64_t> weights, state;
    bool operator==(const Versions&) const = default;
  };
  Versions versions() const {
    Versions all;
    for (const NamedTensor& parameter : mirrors_[0].replica.parameters)
      all.weights.push_back(parameter.tensor.version());
    for (const NamedTensor& buffer : mirrors_[0].replica.buffers) all.weights.push_back(buffer.tensor.version());
    for (const NamedTensor& state : mirrors_[0].optimizer->state()) all.state.push_back(state.tensor.version());
    return all;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(devices_.size()); }

  void lay_out(Mirror& mirror) {
    Device& device = *mirror.replica.device;
    mirror.gradients = Tensor::zeros({total_}, DType::kFloat32, device);
    mirror.sum = Tensor::empty({part_}, DType::kFloat32, device);
    mirror.from_peer = Tensor::empty({part_}, DType::kFloat32, device);
    std::int64_t begin = 0;
    for (const NamedTensor& parameter : mirror.replica.parameters) {
      bind_grad(parameter.tensor, floats_of(mirror.gradients, begin, parameter.tensor.count()).buffer());
      begin += whole_lines(parameter.tensor.count());
    }
    mirror.optimizer = make_optimizer(kName, training_, mirror.replica.parameters);
  }

  // Part `part` of the gradients of device `device`; the last ones may be shorter, or empty.
  Tensor part_of(std::size_t device, std::int64_t part) const {
    const std::int64_t begin = std::min(part * part_, total_), end = std::min(begin + part_, total_);
    return floats_of(mirrors_[device].gradients, begin, end - begin);
  }

  void compute(int number, const Tensor& inputs, const Tensor& targets) {
    Mirror& mirror = mirrors_[static_cast<std::size_t>(number)];
    Device& device = *mirror.replica.device;
    const int parts = static_cast<int>(count());
    set_sample_numbers(numbers_of_part(sample_numbers(), inputs, number, parts));
    mirror.optimizer->zero_grad();
    const Tensor outputs = (*mirror.replica.model)(rows_of_part(kName, inputs, number, parts, device));
    const Tensor loss = loss_of(training_, outputs, rows_of_part(kName, targets, number, parts, device));
    loss.backward();
    mirror.loss = loss.item();  // waits for the device: the others will read its gradients
    device.default_stream().synchronize();
  }

  // The mean of this device's part of all gradients, into its own.
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

  void count_traffic(const Tensor& inputs, const Tensor& targets) {
    for (std::size_t to = 0; to < devices_.size(); ++to) {
      traffic_.add(inputs.device(), *devices_[to], (inputs.bytes() + targets.bytes()) / devices_.size());
      for (std::size_t from = 0; from < devices_.size(); ++from) {
        if (from == to) continue;
        traffic_.add(*devices_[from], *devices_[to],
                     part_of(from, static_cast<std::int64_t>(to)).bytes());  // to be added
        traffic_.add(*devices_[from], *devices_[to],
                     part_of(from, static_cast<std::int64_t>(from)).bytes());  // the means
      }
    }
  }

  Training training_;
  std::vector<Device*> devices_;
  std::vector<Mirror> mirrors_;
  std::vector<Replica*> replicas_;     // theirs
  std::optional<optim::Team> team_;    // of their optimizers
  Versions seen_;                      // at the end of the last step
  std::int64_t total_ = 0, part_ = 0;  // floats: of all gradients, of the share that a device adds up
  TrafficCount traffic_;
  DeviceThreads threads_;
};

}  // namespace

std::unique_ptr<Strategy> make_mirrored(Training training, const StrategyOptions& options) {
  return std::make_unique<Mirrored>(std::move(training), options);
}

}  // namespace lockstep::train
