// One process, with a thread and a copy of the model for each device; TensorFlow calls this MirroredStrategy.
//
//     device 0: variables, optimizer      device 1: variables, optimizer       mirrored: equal bits on all devices
//          |    first part of the batch        |    second part
//     forward, backward                   forward, backward                    a thread each
//          |==== gradients: all-reduce, bucket by bucket, while backward runs ====|
//     optimizer                           optimizer
//
// The threads are the ranks of a process group: shared memory between logical CPUs, NCCL between GPUs. Devices that
// form no such group (parts of one GPU, GPUs without NCCL, a CPU next to a GPU) add their gradients by copies between
// the devices when backward has ended.
//
// Traffic: gradients, 2 (n - 1) / n of their bytes to and from each of n devices in each step, as in an all-reduce
// among processes; the samples from where they are; after the step the buffers (statistics of batch normalisation) of
// device 0, if the model has any. Gradients are added in the order of the devices and scaled as under ddp on one
// machine, so that the weights have ddp's bits.
#include <algorithm>
#include <exception>
#include <optional>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/train/strategy_scope.h"
#include "src/comm/threads/thread_group.h"
#include "src/core/base/message_text.h"
#include "src/optim/team.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/one_process/gradient_exchange.h"

namespace lockstep::train {

namespace {

class Mirrored : public Strategy {
 public:
  static constexpr const char* kName = "mirrored";

  Mirrored(Training training, const StrategyOptions& options)
      : training_(std::move(training)), devices_(options.devices), copies_(kName, training_, devices_) {
    check_float32(kName, copies_[0].parameters);
    why_no_buckets_ = ThreadGroup::refusal(devices_);
    if (!why_no_buckets_.empty())
      log::info("mirrored: gradients are added after backward, by copies between the devices: {}", why_no_buckets_);
    make_exchange();
    for (int i = 0; i < copies_.count(); ++i)
      optimizers_.push_back(make_optimizer(kName, training_, copies_[i].parameters));
    std::vector<optim::Optimizer*> members;
    for (const auto& optimizer : optimizers_) members.push_back(optimizer.get());
    team_.emplace(kName, optim::Team::Kind::kReplicas, members);
    seen_ = versions();
  }

  const char* name() const override { return kName; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    copies_.check_samples(inputs, targets);
    follow_changes();
    for (const auto& optimizer : optimizers_) optimizer->zero_grad();
    if (!exchange_) make_exchange();
    const std::vector<float> losses = average_gradients(inputs, targets);
    team_->step([this](const auto& work) { copies_.run(work); });
    copies_.scatter_buffers(copies_[0]);
    seen_ = versions();
    return mean_of(losses, inputs);
  }

  nn::Module& model() override { return *copies_[0].model; }
  std::vector<nn::Module*> replicas() override {
    follow_changes();
    std::vector<nn::Module*> all;
    for (int i = 0; i < copies_.count(); ++i) all.push_back(copies_[i].model.get());
    return all;
  }
  optim::Optimizer& optimizer() override { return *optimizers_.front(); }
  void set_lr(float lr) override { team_->set_lr(lr); }
  void update_replicas() override {
    for (int i = 1; i < copies_.count(); ++i) {
      copy_values(model().state_dict(), copies_[i].model->state_dict(), copies_.traffic());
      const std::vector<NamedTensor> state = optimizers_[static_cast<std::size_t>(i)]->state();
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
    for (const NamedTensor& state : optimizers_.front()->state()) all.state.push_back(state.tensor.version());
    return all;
  }
  void follow_changes() {
    if (versions() != seen_) update_replicas();
    copies_.scatter_changes(copies_[0]);
  }

  void make_exchange() {
    exchange_ = why_no_buckets_.empty() ? make_bucket_exchange(copies_) : make_peer_exchange(copies_);
  }

  // Forward and backward of all copies. Returns their losses.
  std::vector<float> average_gradients(const Tensor& inputs, const Tensor& targets) {
    std::vector<float> losses(devices_.size());
    std::vector<std::exception_ptr> failures(devices_.size());
    optim::LossScaler* const scaler = loss_scaler_of(&optimizer());
    exchange_->begin();
    copies_.run([&](int copy) {
      const auto number = static_cast<std::size_t>(copy);
      try {
        const Tensor loss = copies_.compute_gradient(training_, copy, inputs, targets, scaler);
        exchange_->finish(copy);
        if (loss.defined()) losses[number] = loss.item();
      } catch (const PeerLost&) {  // another copy has failed, and says why
        failures[number] = std::current_exception();
        exchange_->stop(copy, "another device's part of the step failed");
      } catch (...) {
        failures[number] = std::current_exception();
        has_failed_[number] = true;
        exchange_->stop(copy, fmt::format("mirrored: the step failed on {}: {}", devices_[number]->name(),
                                          exception_text(failures[number])));
      }
    });
    copies_.count_parts(inputs);
    copies_.count_parts(targets);
    rethrow(failures);
    exchange_->settle();
    return losses;
  }

  // After a failure the group of the threads has ended, and the copies' buffers are those of their own samples. The
  // next step makes another group.
  void rethrow(const std::vector<std::exception_ptr>& failures) {
    const auto failed =
        std::find_if(failures.begin(), failures.end(), [](const auto& each) { return each != nullptr; });
    if (failed == failures.end()) return;
    const auto cause = std::find(has_failed_.begin(), has_failed_.end(), true);
    const std::exception_ptr error =
        cause == has_failed_.end() ? *failed : failures[static_cast<std::size_t>(cause - has_failed_.begin())];
    has_failed_.assign(devices_.size(), false);
    exchange_.reset();
    copies_.scatter_buffers(copies_[0]);
    seen_ = versions();
    std::rethrow_exception(error);
  }

  Training training_;
  std::vector<Device*> devices_;
  DeviceCopies copies_;                                                // the first is the model itself
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;          // by copy
  std::optional<optim::Team> team_;                                    // of the optimizers
  std::string why_no_buckets_;                                         // "" if the devices form a group of threads
  std::unique_ptr<GradientExchange> exchange_;                         // null after a step that failed
  std::vector<char> has_failed_ = std::vector<char>(devices_.size());  // by copy, in this step
  Versions seen_;                                                      // at the end of the last step
};

}  // namespace

MirroredStrategy::MirroredStrategy(std::vector<Device*> devices)
    : StrategyChoice(Mirrored::kName, {.devices = std::move(devices)}) {}

std::unique_ptr<Strategy> make_mirrored(Training training, const StrategyOptions& options) {
  return std::make_unique<Mirrored>(std::move(training), options);
}

}  // namespace lockstep::train
