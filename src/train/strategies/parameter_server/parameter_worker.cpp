// The worker of `parameter_server`: it computes gradients with the servers' weights. parameter_server.cpp draws both.
//
// A worker announces its step to the servers, sends each server the gradients of its parameters after backward, and
// returns when all servers have sent their weights: model() is as current as the servers are then. Gradients, and on
// the CPU weights too, are in one piece of memory in the order in which they are sent; those of a GPU pass through a
// copy on the host. Buffers (statistics of batch normalisation) are each worker's own; save worker 0's, like rank 0's
// under ddp.
#include <exception>

#include "lockstep/autograd/variable.h"
#include "src/core/base/message_text.h"
#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

namespace {

class Worker : public Strategy {
 public:
  explicit Worker(ParameterServerJob job)
      : job_(std::move(job)),
        devices_({job_.replica.device}),
        flags_(job_.replica.parameters.size()),
        notices_(job_.tasks.servers.size()),
        exceptions_(std::uncaught_exceptions()) {
    Device& device = *devices_.front();
    gradients_ = Tensor::zeros({job_.layout.total}, DType::kFloat32, device);
    weights_ = Tensor::zeros({job_.layout.total}, DType::kFloat32, device);
    const bool is_on_host = device.kind() == DeviceKind::kCpu;
    host_gradients_ = is_on_host ? gradients_ : Tensor::zeros({job_.layout.total});
    host_weights_ = is_on_host ? weights_ : Tensor::zeros({job_.layout.total});
    for (std::size_t i = 0; i < job_.replica.parameters.size(); ++i) {
      const Tensor& parameter = job_.replica.parameters[i].tensor;
      const FloatRange& range = job_.layout.parameters[i];
      move_into(weights_, range.begin, parameter);
      bind_grad(parameter, floats_of(gradients_, range.begin, range.count).buffer());
    }
  }

  // The servers end when all workers have sent that they have finished; without that the entire job would wait forever.
  ~Worker() override {
    try {
      if (is_in_step_ || std::uncaught_exceptions() > exceptions_)
        abort("");
      else
        notify_servers(Notice::Kind::kFinished);
    } catch (const std::exception&) {
      // The group is over: a step has reported that, or the program's next call will.
    }
  }

  const char* name() const override { return kParameterServer; }
  const std::vector<Device*>& devices() const override { return devices_; }
  std::shared_ptr<ProcessGroup> workers() const override { return job_.workers; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    check_batch(kParameterServer, inputs, targets, 1);
    if (is_in_step_)
      throw InvalidArgument("{}: {}: step {} has failed: the strategy is over", kParameterServer,
                            name_of(job_.tasks.own), steps_ + 1);
    is_in_step_ = true;
    float loss = 0;
    try {
      loss = train_on(inputs.to(*devices_.front()), targets.to(*devices_.front()));
    } catch (...) {
      abort(fmt::format(": {}", exception_text(std::current_exception())));
      throw;
    }
    ++steps_;
    is_in_step_ = false;
    return loss;
  }

  nn::Module& model() override { return *job_.replica.model; }
  optim::Optimizer& optimizer() override {
    throw InvalidArgument(
        "{}: {} has no optimizer; the servers have one each, for their parameters: set_lr() changes their rate",
        kParameterServer, job_.tasks.describe(job_.group().rank()));
  }
  std::vector<optim::Optimizer*> optimizers() override { return {}; }
  void set_lr(float lr) override {
    if (!optim::is_rate(lr))
      throw InvalidArgument("{}: got a learning rate of {}; expected a finite number from 0 on", kParameterServer, lr);
    lr_ = lr;
  }
  std::vector<NamedLoss> step_losses() const override { return losses_.values(); }
  std::vector<DeviceTraffic> traffic() const override { return {{devices_.front(), sent_, received_}}; }

 private:
  void abort(const std::string& reason) {
    job_.group().abort(
        fmt::format("parameter_server: {} has failed in step {}{}", name_of(job_.tasks.own), steps_ + 1, reason));
  }

  float train_on(const Tensor& inputs, const Tensor& targets) {
    job_.tasks.with_names([this] {
      if (steps_ == 0) begin();
      notify_servers(Notice::Kind::kStep);
    });
    for (const NamedTensor& parameter : job_.replica.parameters) clear_grad(parameter.tensor);
    const nn::AddedLosses added;
    nn::Module& model = *job_.replica.model;
    const Tensor outputs = model(inputs);
    const Tensor loss = total_loss(job_.training, model, outputs, targets, added, /*scaler=*/nullptr, &losses_);
    loss.backward();
    for (std::size_t i = 0; i < flags_.size(); ++i)
      flags_[i] = has_grad(job_.replica.parameters[i].tensor) ? 1.0F : 0.0F;
    for (const NamedTensor& parameter : job_.replica.parameters)  // other workers may have reached it
      if (!has_grad(parameter.tensor)) zero_gradient(parameter.tensor);
    const float value = loss.item();
    if (!host_gradients_.is_same(gradients_)) host_gradients_.copy_from(gradients_);
    for (std::size_t i = 0; i < flags_.size(); ++i) host_gradients_.data<float>()[job_.layout.flags[i]] = flags_[i];
    job_.tasks.with_names([this] { exchange(); });
    return value;
  }

  // The servers begin with worker 0's weights, frozen parameters and buffers; all other workers take these over.
  void begin() {
    const std::vector<NamedTensor> rest = rest_of(job_.replica);
    std::vector<std::byte> bytes = bytes_of(rest);
    const bool gives = job_.tasks.own.index == 0;
    if (gives && !host_weights_.is_same(weights_)) host_weights_.copy_from(weights_);
    notify_servers(gives ? Notice::Kind::kWeights : Notice::Kind::kJoins);
    std::vector<Work> under_way = gives ? send(host_weights_) : receive_weights();
    const int first = job_.tasks.servers[0];
    if (!bytes.empty())
      under_way.push_back(gives ? job_.group().send_async(bytes.data(), bytes.size(), DType::kUInt8, first, kRestTag)
                                : job_.group().recv_async(bytes.data(), bytes.size(), DType::kUInt8, first, kRestTag,
                                                          nullptr, patient()));
    (gives ? sent_ : received_) += bytes.size();
    for (const Work& work : under_way) work.wait();
    if (gives) return;
    set_to_bytes(rest, bytes);
    take_over_weights();
  }

  // Sends gradients and receives weights, to and from all servers at once.
  void exchange() {
    const std::vector<Work> answers = receive_weights();
    for (const Work& work : send(host_gradients_)) work.wait();
    for (const Work& work : answers) work.wait();
    take_over_weights();
  }

  // Twice the group's deadline: a server that waits for another worker reports that worker first.
  CallOptions patient() const { return {.timeout = 2 * job_.group().timeout()}; }

  std::vector<Work> receive_weights() {
    std::vector<Work> under_way;
    for (std::size_t server = 0; server < job_.tasks.servers.size(); ++server) {
      const FloatRange& range = job_.layout.servers[server];
      under_way.push_back(job_.group().recv_async(host_weights_.data<float>() + range.begin,
                                                  static_cast<std::size_t>(range.count), DType::kFloat32,
                                                  job_.tasks.servers[server], kFloatsTag, nullptr, patient()));
      received_ += static_cast<std::uint64_t>(range.count) * sizeof(float);
    }
    return under_way;
  }

  void take_over_weights() {
    if (!host_weights_.is_same(weights_)) weights_.copy_from(host_weights_);
    for (const NamedTensor& parameter : job_.replica.parameters) parameter.tensor.mark_changed();
  }

  void notify_servers(Notice::Kind kind) {
    for (std::size_t server = 0; server < notices_.size(); ++server) {
      notices_[server] = {.kind = kind, .lr = lr_.value_or(0), .has_lr = lr_ ? 1 : 0, .step = steps_ + 1};
      job_.group().send(&notices_[server], sizeof(Notice), DType::kUInt8, job_.tasks.servers[server], kNoticeTag);
    }
  }

  std::vector<Work> send(const Tensor& floats) {
    std::vector<Work> under_way;
    for (std::size_t server = 0; server < job_.tasks.servers.size(); ++server) {
      const FloatRange& range = job_.layout.servers[server];
      under_way.push_back(job_.group().send_async(floats.data<float>() + range.begin,
                                                  static_cast<std::size_t>(range.count), DType::kFloat32,
                                                  job_.tasks.servers[server], kFloatsTag));
      sent_ += static_cast<std::uint64_t>(range.count) * sizeof(float);
    }
    return under_way;
  }

  ParameterServerJob job_;
  std::vector<Device*> devices_;
  Tensor gradients_, weights_;            // on the device; the model's tensors are windows of them
  Tensor host_gradients_, host_weights_;  // what is sent and received; the same tensors if the device is the CPU
  std::vector<float> flags_;              // by parameter: 1 if it has a gradient in this step
  std::vector<Notice> notices_;           // by server
  StepLosses losses_;
  std::optional<float> lr_;
  const int exceptions_;
  bool is_in_step_ = false;  // or has failed in one
  std::int64_t steps_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_worker(ParameterServerJob job) { return std::make_unique<Worker>(std::move(job)); }

}  // namespace lockstep::train
