// The server of `parameter_server`: it holds a part of the parameters, and updates them with the workers' gradients.
// TensorFlow calls this a parameter server, after DistBelief.
//
//     ps:0: parameters 0, 2, ..., optimizer            ps:1: parameters 1, 3, ..., optimizer     (on the CPU)
//        ^ gradients 0, 2, ...   | weights 0, 2, ...      ^ gradients 1, 3, ...   | weights 1, 3, ...
//        |                       v                        |                       v
//     worker:0: model, forward, backward               worker:1: ...
//
// Each is a process. A worker has all weights and its own samples.
// train/parameter_server.h says which server holds which parameter. Traffic: in a step each of n workers sends the
// gradients of all parameters, each to its server, and receives all weights: as many bytes as the model has, out and
// in. Each of P servers sends and receives n / P of them: with few servers its connection is a bottleneck, which ddp
// does not have. No worker sends to another one.
//
// Synchronous: a server adds the gradients of a step in the order of the workers, in whatever order they arrive,
// scales, updates, and answers all: the sums, and so the bits, are those of ddp on one machine. Asynchronous: it
// updates with each worker's gradients as they arrive, and answers workers that are at most `staleness` steps ahead. A
// worker's clock is the number of its steps that this server has received.
//
// A worker announces each step to all servers, which then expect its gradients; servers send no requests. With its
// first step worker 0 sends the weights that the job begins with, and any other worker requests them; ps:0 passes on
// worker 0's frozen parameters and buffers. A worker notifies each server when it has finished; a server ends with the
// last worker. It waits for paused workers as long as they live, and until the group's deadline for a worker that keeps
// another one waiting. A process that dies, fails, stops or leaves ends the group for all, as under any other strategy.
#include <algorithm>

#include "lockstep/autograd/variable.h"
#include "src/core/base/message_text.h"
#include "src/optim/step_parts.h"
#include "src/train/strategies/parameter_server/parameter_clients.h"

namespace lockstep::train {

namespace {

class Server : public Strategy, public ParameterHolder {
 public:
  explicit Server(ParameterServerJob job)
      : job_(std::move(job)),
        range_(job_.layout.servers[static_cast<std::size_t>(job_.tasks.own.index)]),
        devices_({&cpu_device()}),
        clients_(job_.tasks) {
    weights_ = Tensor::zeros({range_.count});
    for (std::size_t i = 0; i < clients_.size(); ++i) gradients_.push_back(Tensor::zeros({range_.count}));
    for (std::size_t i = 0; i < job_.replica.parameters.size(); ++i) {
      if (job_.layout.server_of[i] != job_.tasks.own.index) continue;
      const NamedTensor& parameter = job_.replica.parameters[i];
      const std::int64_t begin = job_.layout.parameters[i].begin - range_.begin;
      move_into(weights_, begin, parameter.tensor);
      parameters_.push_back(parameter);
      begins_.push_back(begin);
      flags_.push_back(job_.layout.flags[i] - range_.begin);
    }
    if (job_.tasks.own.index == 0) rest_ = bytes_of(rest_of(job_.replica));
    job_.replica = {};  // the other parameters belong to other servers
    optimizer_ = make_optimizer(kParameterServer, job_.training, parameters_);
    if (optim::StepParts(*optimizer_).scales_loss())
      throw InvalidArgument(
          "{}: the optimizer has a LossScaler: servers would divide by a scale of their own, and no step changes the "
          "scale of a worker's loss; compute in bfloat16, which needs no LossScaler, or use another strategy",
          kParameterServer);
  }

  const char* name() const override { return kParameterServer; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor&, const Tensor&) override {
    throw InvalidArgument(
        "{}: {} trains on no samples: call serve() of as<ParameterHolder>() here, and step() on the workers alone",
        kParameterServer, job_.tasks.describe(job_.group().rank()));
  }
  nn::Module& model() override {
    throw InvalidArgument("{}: {} holds a part of the parameters: worker 0's model() has all weights", kParameterServer,
                          job_.tasks.describe(job_.group().rank()));
  }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::vector<NamedLoss> step_losses() const override { return {}; }
  std::vector<DeviceTraffic> traffic() const override { return {{devices_.front(), sent_, received_}}; }

  void serve() override {
    if (std::exchange(has_served_, true))
      throw InvalidArgument("{}: {}: serve() has run: a strategy serves once", kParameterServer,
                            name_of(job_.tasks.own));
    try {
      job_.tasks.with_names([this] { serve_workers(); });
    } catch (...) {
      job_.group().abort(exception_text(std::current_exception()));
      throw;
    }
  }

 private:
  using State = ParameterClient::State;
  bool is_synchronous() const { return job_.options.staleness == 0; }

  void serve_workers() {
    for (std::size_t i = 0; i < clients_.size(); ++i) clients_.expect_notice(i);
    while (!clients_.have_finished()) {
      const std::size_t worker = clients_.next_message();
      if (clients_[worker].is(State::kComputes))
        take_gradients(worker);
      else
        take_notice(worker);
      if (is_synchronous()) update_by_all();
      answer();
    }
  }

  void take_notice(std::size_t worker) {
    ParameterClient& client = clients_[worker];
    client.notice = client.notice_to_come;
    LOCKSTEP_CHECK(client.is(State::kPaused), "parameter_server: {} sends a notice while it waits",
                   clients_.describe(worker));
    switch (client.notice.kind) {
      case Notice::Kind::kFinished:
        client.state = State::kFinished;
        has_begun_ |= worker == 0;
        return;
      case Notice::Kind::kStep:
        LOCKSTEP_CHECK(client.notice.step == client.clock + 1, "parameter_server: {} begins step {} after {}",
                       clients_.describe(worker), client.notice.step, client.clock);
        client.state = State::kComputes;
        return clients_.expect_floats(worker, gradients_[worker]);
      case Notice::Kind::kWeights:
        receive(weights_.data<float>(), static_cast<std::size_t>(range_.count), DType::kFloat32, worker, kFloatsTag);
        if (!rest_.empty()) receive(rest_.data(), rest_.size(), DType::kUInt8, worker, kRestTag);
        has_begun_ = true;
        break;
      case Notice::Kind::kJoins: client.state = State::kJoins; break;
    }
    clients_.expect_notice(worker);
  }

  void receive(void* data, std::size_t count, DType dtype, std::size_t worker, int tag) {
    job_.group().recv(data, count, dtype, job_.tasks.workers[worker], tag);
    received_ += count * size_of(dtype);
  }

  void take_gradients(std::size_t worker) {
    ParameterClient& client = clients_[worker];
    received_ += gradients_[worker].bytes();
    client.clock = client.notice.step;
    client.state = State::kWaits;
    clients_.expect_notice(worker);
    if (!is_synchronous()) update(client.notice, gradients_[worker]);
  }

  // Updates by the mean of all gradients, when all have arrived.
  void update_by_all() {
    const std::vector<ParameterClient>& all = clients_.all();
    const auto waits = [](const ParameterClient& client) { return client.is(State::kWaits); };
    const auto waiting = std::find_if(all.begin(), all.end(), waits);
    if (waiting == all.end()) return;
    for (std::size_t i = 0; i < clients_.size(); ++i) check_goes_on(i, static_cast<std::size_t>(waiting - all.begin()));
    if (!std::all_of(all.begin(), all.end(), waits)) return;
    Device& device = *devices_.front();
    const Tensor& mean = gradients_[0];
    for (std::size_t i = 1; i < gradients_.size(); ++i)
      device.kernels().add(mean, gradients_[i], mean, device.default_stream());
    device.kernels().scale(mean, 1 / static_cast<float>(gradients_.size()), mean, device.default_stream());
    update(all[0].notice, mean);
  }

  // Worker `waiting` waits for the gradients of `worker`.
  void check_goes_on(std::size_t worker, std::size_t waiting) {
    if (!clients_[worker].is(State::kFinished)) return;
    throw InvalidArgument(
        "parameter_server: {} has finished after {} steps, but {} is in step {}: synchronous workers must make the "
        "same number of steps; give them the same number of batches, or a .staleness above 0",
        clients_.describe(worker), clients_[worker].clock, clients_.describe(waiting), clients_[waiting].clock);
  }

  void update(const Notice& notice, const Tensor& gradients) {
    if (notice.has_lr != 0) optimizer_->set_lr(notice.lr);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& parameter = parameters_[i].tensor;
      clear_grad(parameter);
      if (gradients.data<float>()[flags_[i]] == 0) continue;  // no worker's backward reached it
      bind_grad(parameter, floats_of(gradients, begins_[i], parameter.count()).buffer());
      mark_grad_written(parameter);
    }
    optimizer_->step();
  }

  // Sends the weights to the workers that wait for them and are not too far ahead.
  void answer() {
    std::vector<Work> under_way;
    const auto send = [&](const void* data, std::size_t count, DType dtype, std::size_t worker, int tag) {
      under_way.push_back(job_.group().send_async(data, count, dtype, job_.tasks.workers[worker], tag));
      sent_ += count * size_of(dtype);
    };
    for (std::size_t i = 0; i < clients_.size() && has_begun_; ++i) {
      ParameterClient& client = clients_[i];
      if (!client.waits() || client.clock - clients_.slowest() > job_.options.staleness) continue;
      send(weights_.data<float>(), static_cast<std::size_t>(range_.count), DType::kFloat32, i, kFloatsTag);
      if (client.is(State::kJoins) && !rest_.empty()) send(rest_.data(), rest_.size(), DType::kUInt8, i, kRestTag);
      client.state = State::kPaused;
      client.waited = {};
    }
    for (const Work& work : under_way) work.wait();  // the workers are waiting for these, so no send blocks
  }

  ParameterServerJob job_;
  const FloatRange range_;  // of all floats
  std::vector<Device*> devices_;
  ParameterClients clients_;
  Tensor weights_;     // in one piece of memory: the parameters are windows of it
  Tensors gradients_;  // by worker
  std::vector<NamedTensor> parameters_;
  std::vector<std::int64_t> begins_, flags_;  // by parameter, in weights_ and gradients
  std::vector<std::byte> rest_;               // of ps:0: see rest_of()
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::uint64_t sent_ = 0, received_ = 0;
  bool has_begun_ = false;  // worker 0's weights have arrived, or it has finished without a step
  bool has_served_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_server(ParameterServerJob job) { return std::make_unique<Server>(std::move(job)); }

}  // namespace lockstep::train
