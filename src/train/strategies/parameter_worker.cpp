// The worker of `parameter_server`: it computes gradients with the servers' weights. parameter_server.cpp draws both.
//
// A step sends each server the gradients of its parameters once backward has ended, and ends when all servers have sent their weights:
// model() is current then, as far as its servers know. Gradients, and on the CPU weights too, lie in one memory in the order in which they
// travel; a GPU's pass through a copy on the host. Buffers (statistics of batch normalisation) are each worker's own; worker 0's are those
// that are worth saving, as rank 0's are under ddp.
#include <exception>

#include "lockstep/autograd/variable.h"
#include "src/ddp/replicas.h"
#include "src/train/strategies/parameter_tasks.h"

namespace lockstep::train {

namespace {

class Worker : public Strategy {
 public:
  explicit Worker(ParameterServerJob job)
      : job_(std::move(job)),
        devices_({job_.replica.device}),
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

  // The servers end when all workers have said that they have finished; without that all of the job would wait in vain.
  ~Worker() override {
    try {
      if (is_in_step_ || std::uncaught_exceptions() > exceptions_)
        abort("");
      else
        tell_servers(Notice::Kind::kFinished);
    } catch (const std::exception&) {
      // The group is over: a step has said so, or the program will hear of it.
    }
  }

  const char* name() const override { return kParameterServer; }
  const std::vector<Device*>& devices() const override { return devices_; }
  std::shared_ptr<ProcessGroup> workers() const override { return job_.workers; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    check_batch(kParameterServer, inputs, targets, 1);
    if (is_in_step_)
      throw InvalidArgument("{}: {}: step {} has failed: the strategy is over", kParameterServer, name_of(job_.tasks.own), steps_ + 1);
    is_in_step_ = true;
    float loss = 0;
    try {
      loss = train_on(inputs.to(*devices_.front()), targets.to(*devices_.front()));
    } catch (const std::exception& error) {
      abort(fmt::format(": {}", error.what()));
      throw;
    }
    ++steps_;
    is_in_step_ = false;
    return loss;
  }

  nn::Module& model() override { return *job_.replica.model; }
  optim::Optimizer& optimizer() override {
    throw InvalidArgument(
        "{}: {} has no optimizer, the servers have: set_lr() changes their rate, and a server's optimizer() is that of its parameters",
        kParameterServer, job_.tasks.describe(job_.group().rank()));
  }
  std::vector<optim::Optimizer*> optimizers() override { return {}; }
  void set_lr(float lr) override {
    if (!optim::is_rate(lr)) throw InvalidArgument("{}: a learning rate of {}; a finite number from 0 on is needed", kParameterServer, lr);
    lr_ = lr;
  }
  std::vector<DeviceTraffic> traffic() const override { return {{devices_.front(), sent_, received_}}; }

 private:
  void abort(const std::string& reason) {
    job_.group().abort(fmt::format("parameter_server: {} has failed in step {}{}", name_of(job_.tasks.own), steps_ + 1, reason));
  }

  float train_on(const Tensor& inputs, const Tensor& targets) {
    if (steps_ == 0) job_.tasks.with_names([this] { begin(); });
    for (const NamedTensor& parameter : job_.replica.parameters) clear_grad(parameter.tensor);
    const Tensor loss = loss_of(job_.training, (*job_.replica.model)(inputs), targets);
    loss.backward();
    zero_missing_gradients(job_.replica);
    const float value = loss.item();
    if (!host_gradients_.is_same(gradients_)) host_gradients_.copy_from(gradients_);
    job_.tasks.with_names([this] { exchange(); });
    return value;
  }

  // All begin with worker 0's weights and buffers; the servers with its parameters.
  void begin() {
    std::vector<NamedTensor> on_host;
    const std::vector<NamedTensor> state = job_.replica.model->state_dict();
    for (const auto& [name, tensor] : state) on_host.push_back({name, tensor.to(cpu_device())});
    if (job_.workers->world_size() > 1) replace_by_roots(*job_.workers, on_host, "first weights");
    for (std::size_t i = 0; i < state.size(); ++i)
      if (!on_host[i].tensor.is_same(state[i].tensor)) state[i].tensor.copy_from(on_host[i].tensor);
    if (job_.tasks.own.index > 0) return;
    if (!host_weights_.is_same(weights_)) host_weights_.copy_from(weights_);
    tell_servers(Notice::Kind::kWeights);
    for (const Work& work : send(host_weights_)) work.wait();
  }

  // Gradients out, weights in, of all servers at once.
  void exchange() {
    std::vector<Work> answers;
    for (std::size_t server = 0; server < job_.tasks.servers.size(); ++server) {
      const FloatRange& range = job_.layout.servers[server];
      answers.push_back(job_.group().recv_async(host_weights_.data<float>() + range.begin, static_cast<std::size_t>(range.count),
                                                DType::kFloat32, job_.tasks.servers[server], kFloatsTag));
      received_ += static_cast<std::uint64_t>(range.count) * sizeof(float);
    }
    tell_servers(Notice::Kind::kGradients);
    for (const Work& work : send(host_gradients_)) work.wait();
    for (const Work& work : answers) work.wait();
    if (!host_weights_.is_same(weights_)) weights_.copy_from(host_weights_);
    for (const NamedTensor& parameter : job_.replica.parameters) parameter.tensor.mark_changed();
  }

  void tell_servers(Notice::Kind kind) {
    for (std::size_t server = 0; server < notices_.size(); ++server) {
      notices_[server] = {.kind = kind, .lr = lr_.value_or(0), .has_lr = lr_ ? 1 : 0, .step = steps_ + 1};
      job_.group().send(&notices_[server], sizeof(Notice), DType::kUInt8, job_.tasks.servers[server], kNoticeTag);
    }
  }

  std::vector<Work> send(const Tensor& floats) {
    std::vector<Work> under_way;
    for (std::size_t server = 0; server < job_.tasks.servers.size(); ++server) {
      const FloatRange& range = job_.layout.servers[server];
      under_way.push_back(job_.group().send_async(floats.data<float>() + range.begin, static_cast<std::size_t>(range.count),
                                                  DType::kFloat32, job_.tasks.servers[server], kFloatsTag));
      sent_ += static_cast<std::uint64_t>(range.count) * sizeof(float);
    }
    return under_way;
  }

  ParameterServerJob job_;
  std::vector<Device*> devices_;
  Tensor gradients_, weights_;            // on the device: the model's are windows of them
  Tensor host_gradients_, host_weights_;  // what travels: the same where the device is the CPU
  std::vector<Notice> notices_;           // by server
  std::optional<float> lr_;
  const int exceptions_;
  bool is_in_step_ = false;  // or has failed in one
  std::int64_t steps_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_worker(ParameterServerJob job) { return std::make_unique<Worker>(std::move(job)); }

}  // namespace lockstep::train
