// The server of `parameter_server`: it holds a part of the parameters, and updates them by what workers send. What TensorFlow calls a
// parameter server, after DistBelief.
//
//     ps:0: parameters 0, 2, ..., optimizer            ps:1: parameters 1, 3, ..., optimizer     a process each, on the CPU
//        ^ gradients 0, 2, ...   | weights 0, 2, ...      ^ gradients 1, 3, ...   | weights 1, 3, ...
//        |                       v                        |                       v
//     worker:0: model, forward, backward               worker:1: ...             a process each: all weights, its own samples
//
// Which parameter is whose: train/parameter_server.h. What travels: in a step each of n workers sends the gradients of all parameters, each
// to its server, and receives all weights: as many bytes as the model has, out and in. One of P servers sends and receives n / P of them:
// with few servers its connection is the bottleneck, which ddp has not. No worker sends to another one but before the first step.
//
// Synchronous: a server adds the gradients of a step in the order of the workers, however they come, scales and updates, and answers all:
// the sums and so the bits are those of ddp on one machine. Asynchronous: it updates by each worker's gradients as they come, and answers
// those who are at most `staleness` steps ahead. Here a worker's clock is the number of its steps that this server has seen.
//
// A worker tells each server when it has finished; a server ends with the last of them. A process that dies, fails or stops ends the
// group for all, as under any other strategy.
#include <algorithm>
#include <limits>

#include "lockstep/autograd/variable.h"
#include "src/train/strategies/parameter_tasks.h"

namespace lockstep::train {

namespace {

class Server : public Strategy {
 public:
  explicit Server(ParameterServerJob job)
      : job_(std::move(job)),
        range_(job_.layout.servers[static_cast<std::size_t>(job_.tasks.own.index)]),
        devices_({&cpu_device()}),
        clients_(job_.tasks.workers.size()) {
    weights_ = Tensor::zeros({range_.count});
    for (std::size_t i = 0; i < (is_synchronous() ? clients_.size() : 1); ++i) gradients_.push_back(Tensor::zeros({range_.count}));
    for (std::size_t i = 0; i < job_.replica.parameters.size(); ++i) {
      if (job_.layout.server_of[i] != job_.tasks.own.index) continue;
      const NamedTensor& parameter = job_.replica.parameters[i];
      const std::int64_t begin = job_.layout.parameters[i].begin - range_.begin;
      move_into(weights_, begin, parameter.tensor);
      bind_grad(parameter.tensor, floats_of(gradients_[0], begin, parameter.tensor.count()).buffer());
      parameters_.push_back(parameter);
    }
    job_.replica = {};  // the rest of the model is the other servers'
    optimizer_ = make_optimizer(kParameterServer, job_.training, parameters_);
  }

  const char* name() const override { return kParameterServer; }
  const std::vector<Device*>& devices() const override { return devices_; }
  bool is_server() const override { return true; }

  float step(const Tensor&, const Tensor&) override {
    throw InvalidArgument("{}: {} trains on no samples: where is_server() call serve(), and step() on the workers alone", kParameterServer,
                          job_.tasks.describe(job_.group().rank()));
  }
  nn::Module& model() override {
    throw InvalidArgument("{}: {} holds a part of the parameters: worker 0's model() has all weights", kParameterServer,
                          job_.tasks.describe(job_.group().rank()));
  }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::vector<DeviceTraffic> traffic() const override { return {{devices_.front(), sent_, received_}}; }

  void serve() override {
    if (std::exchange(has_served_, true))
      throw InvalidArgument("{}: {}: serve() has run: a strategy serves once", kParameterServer, name_of(job_.tasks.own));
    try {
      job_.tasks.with_names([this] { serve_workers(); });
    } catch (const std::exception& error) {
      job_.group().abort(error.what());
      throw;
    }
  }

 private:
  // A worker, as this server knows it.
  struct Client {
    std::int64_t clock = 0;  // steps
    bool waits = false;      // for the weights
    bool has_finished = false;
    Notice last;
  };
  bool is_synchronous() const { return job_.options.staleness == 0; }
  std::size_t bytes() const { return weights_.bytes(); }

  void serve_workers() {
    begin();
    while (std::any_of(clients_.begin(), clients_.end(), [](const Client& client) { return !client.has_finished; })) {
      Notice notice;
      const std::size_t worker = next_notice(notice, kAnyRank);
      if (notice.kind == Notice::Kind::kFinished)
        clients_[worker].has_finished = true;
      else
        take_gradients(worker, notice);
      if (is_synchronous()) update_by_all();
      answer();
    }
  }

  // The weights that the job begins with are worker 0's; or it has finished without a step.
  void begin() {
    Notice notice;
    next_notice(notice, job_.tasks.workers[0]);
    clients_[0].has_finished = notice.kind == Notice::Kind::kFinished;
    if (!clients_[0].has_finished) receive_from(0, weights_);
  }

  std::size_t next_notice(Notice& notice, int from) {
    try {
      return static_cast<std::size_t>(job_.tasks.worker_of(job_.group().recv(&notice, sizeof notice, DType::kUInt8, from, kNoticeTag)));
    } catch (const TimeoutError& error) {
      std::string missing;
      for (std::size_t i = 0; i < clients_.size(); ++i)
        if (!clients_[i].waits && !clients_[i].has_finished)
          missing += fmt::format("{}{}, after step {}", missing.empty() ? "" : "; ", job_.tasks.describe(job_.tasks.workers[i]),
                                 clients_[i].clock);
      throw TimeoutError("{}; missing: {}", error.what(), missing);
    }
  }

  void receive_from(std::size_t worker, const Tensor& floats) {
    job_.group().recv(floats.data<float>(), static_cast<std::size_t>(range_.count), DType::kFloat32, job_.tasks.workers[worker],
                      kFloatsTag);
    received_ += bytes();
  }

  void take_gradients(std::size_t worker, const Notice& notice) {
    Client& client = clients_[worker];
    LOCKSTEP_CHECK(notice.kind == Notice::Kind::kGradients && notice.step == client.clock + 1,
                   "parameter_server: {} sends step {} after {}", job_.tasks.describe(job_.tasks.workers[worker]), notice.step,
                   client.clock);
    receive_from(worker, gradients_[is_synchronous() ? worker : 0]);
    client.clock = notice.step;
    client.waits = true;
    client.last = notice;
    if (!is_synchronous()) update(notice);
  }

  // Once the gradients of all have come: their mean, in gradients_[0], where the optimizer reads them.
  void update_by_all() {
    const auto waits = [](const Client& client) { return client.waits; };
    if (std::none_of(clients_.begin(), clients_.end(), waits)) return;
    for (std::size_t i = 0; i < clients_.size(); ++i) check_goes_on(i);
    if (!std::all_of(clients_.begin(), clients_.end(), waits)) return;
    Device& device = *devices_.front();
    const Tensor& mean = gradients_[0];
    for (std::size_t i = 1; i < gradients_.size(); ++i) device.kernels().add(mean, gradients_[i], mean, device.default_stream());
    device.kernels().scale(mean, 1 / static_cast<float>(gradients_.size()), mean, device.default_stream());
    update(clients_[0].last);
  }

  // Another worker waits for the gradients of this one.
  void check_goes_on(std::size_t worker) const {
    if (!clients_[worker].has_finished) return;
    const auto waiting = static_cast<std::size_t>(
        std::find_if(clients_.begin(), clients_.end(), [](const Client& client) { return client.waits; }) - clients_.begin());
    throw InvalidArgument(
        "parameter_server: {} has finished after {} steps, {} is in step {}: synchronous workers make as many steps each; give them as "
        "many batches, "
        "or a .staleness above 0",
        job_.tasks.describe(job_.tasks.workers[worker]), clients_[worker].clock, job_.tasks.describe(job_.tasks.workers[waiting]),
        clients_[waiting].clock);
  }

  void update(const Notice& notice) {
    if (notice.has_lr != 0) optimizer_->set_lr(notice.lr);
    for (const NamedTensor& parameter : parameters_) mark_grad_written(parameter.tensor);
    optimizer_->step();
  }

  // The weights, to those who wait for them and are not too far ahead.
  void answer() {
    std::int64_t slowest = std::numeric_limits<std::int64_t>::max();
    for (const Client& client : clients_)
      if (!client.has_finished) slowest = std::min(slowest, client.clock);
    std::vector<Work> under_way;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      Client& client = clients_[i];
      if (!client.waits || client.clock - slowest > job_.options.staleness) continue;
      client.waits = false;
      sent_ += bytes();
      under_way.push_back(job_.group().send_async(weights_.data<float>(), static_cast<std::size_t>(range_.count), DType::kFloat32,
                                                  job_.tasks.workers[i], kFloatsTag));
    }
    for (const Work& work : under_way) work.wait();  // the workers wait: none keeps the others from their answers
  }

  ParameterServerJob job_;
  const FloatRange range_;  // of all floats
  std::vector<Device*> devices_;
  std::vector<Client> clients_;  // by worker
  Tensor weights_;               // this server's, in one memory: the parameters are windows of it
  Tensors gradients_;            // synchronous: by worker; else one
  std::vector<NamedTensor> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::uint64_t sent_ = 0, received_ = 0;
  bool has_served_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_server(ParameterServerJob job) { return std::make_unique<Server>(std::move(job)); }

}  // namespace lockstep::train
