// The server of `parameter_server`: it holds a part of the parameters, and updates them with the workers' gradients.
// TensorFlow calls this a parameter server, after DistBelief.
//
//     ps:0: parameters 0, 2, ..., optimizer            ps:1: parameters 1, 3, ..., optimizer     (on the CPU)
//        ^ gradients 0, 2, ...   | weights 0, 2, ...      ^ gradients 1, 3, ...   | weights 1, 3, ...
//        |                       v                        |                       v
//     worker:0: model, forward, backward               worker:1: ...
//
// Each is a process. A worker has all weights and its own samples.
// train/parameter_server.h says which server holds which parameter, or which rows of a large one. Traffic: in a step
// each of n workers sends the gradients of all parameters, each to its server, and receives all weights: as many bytes
// as the model has, out and in. Each of P servers sends and receives n / P of them: with few servers its connection is
// a bottleneck, which ddp does not have. No worker sends to another one.
//
// Synchronous: a server adds the gradients of a step in the order of the workers, in whatever order they arrive,
// scales, updates, and answers all: the sums, and so the bits, are those of ddp on one machine. Asynchronous: it
// updates with each worker's gradients as they arrive, and answers workers that are at most `staleness` steps ahead. A
// worker's clock is the number of its steps that this server has received.
//
// With b of W workers as backup, ps:0 decides: when W - b workers have sent the gradients of the current step to all
// servers (kComplete), it announces these workers to the other servers, and all servers update with these gradients.
// A worker whose gradients are not in their step is answered at once, and computes the next step of ps:0. If each
// server decided by itself, one could wait for a worker that waits for another server. That worker's gradients have
// left it when ps:0 decides, so a worker that is stopped holds up no step.
//
// A worker announces each step to all servers, which then expect its gradients; servers send no requests. With its
// first step worker 0 sends the weights that the job begins with, and the optimizer's state if it has loaded one; any
// other worker requests the weights; ps:0 passes on worker 0's frozen parameters and buffers. Between steps a worker
// may fetch the optimizer's state. A worker notifies each server when it has finished; a server ends with the last
// worker. It waits for paused workers as long as they live, and until the group's deadline for a worker that keeps
// another one waiting. A process that dies, fails, stops or leaves ends the group for all, as under any other strategy;
// with .allow_worker_failures each worker has a group with each server, which ends with it, and the servers go on.
#include <algorithm>

#include "lockstep/core/log.h"
#include "src/core/base/message_text.h"
#include "src/train/strategies/parameter_server/parameter_clients.h"
#include "src/train/strategies/parameter_server/server_shard.h"
#include "src/train/strategies/parameter_server/step_decisions.h"
#include "src/train/strategies/served_calls.h"

namespace lockstep::train {

namespace {

class Server : public Strategy, public ParameterHolder, public CallServer {
 public:
  explicit Server(ParameterServerJob job) : job_(std::move(job)), shard_(job_), clients_(job_), decisions_(job_) {
    for (std::size_t i = 0; i < clients_.size(); ++i)
      gradients_.push_back(Tensor::zeros({shard_.floats()}, DType::kFloat32, cpu_device()));
    if (is_first()) rest_ = bytes_of(rest_of(job_.replica));
    job_.replica = {};  // the other parameters belong to other servers
  }

  const char* name() const override { return kParameterServer; }
  const std::vector<Device*>& devices() const override { return job_.devices; }

  float step(const Tensor&, const Tensor&) override {
    throw InvalidArgument(
        "{}: {} trains on no samples: call serve() of as<ParameterHolder>() here, and step() on the workers alone",
        kParameterServer, job_.tasks.describe(job_.group().rank()));
  }
  nn::Module& model() override {
    throw InvalidArgument("{}: {} holds a part of the parameters: worker 0's model() has all weights", kParameterServer,
                          job_.tasks.describe(job_.group().rank()));
  }
  optim::Optimizer& optimizer() override { return shard_.optimizer(); }
  void set_lr(float lr) override { shard_.optimizer().set_lr(lr); }
  std::vector<NamedLoss> step_losses() const override { return {}; }
  std::vector<DeviceTraffic> traffic() const override { return {{job_.devices.front(), sent_, received_}}; }

  void serve() override {
    if (std::exchange(has_served_, true))
      throw InvalidArgument("{}: {}: serve() has run: a strategy serves once", kParameterServer,
                            name_of(job_.tasks.own));
    serve_workers();
  }

  std::string serve_call() override {
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (clients_[i].is(State::kCallEnded)) clients_[i].state = State::kPaused;
    serve_workers();
    return receive_text(clients_.link(0), kResultTag);
  }

  std::vector<std::int64_t> dropped_gradients() const override {
    std::vector<std::int64_t> dropped;
    for (const ParameterClient& client : clients_.all()) dropped.push_back(client.answer.dropped);
    return dropped;
  }

 private:
  using State = ParameterClient::State;
  bool is_first() const { return job_.tasks.own.index == 0; }
  bool is_synchronous() const { return job_.options.staleness == 0; }
  bool has_backup() const { return job_.options.backup_workers > 0; }

  void serve_workers() {
    try {
      job_.tasks.with_names([this] {
        for (std::size_t i = 0; i < clients_.size(); ++i)
          if (clients_[i].sends()) clients_.expect_notice(i);
        decisions_.expect();
        while (!clients_.send_no_more() || !decisions_.is_over()) take(clients_.next(decisions_.next()));
        if (has_backup() && is_first()) decisions_.end();
      });
    } catch (...) {
      job_.abort(exception_text(std::current_exception()));
      throw;
    }
  }

  void take(const ServerEvent& event) {
    switch (event.kind) {
      case ServerEvent::Kind::kDecision: decisions_.take(); break;
      case ServerEvent::Kind::kLost: lose(event.worker, event.why); break;
      case ServerEvent::Kind::kMessage:
        with_worker(event.worker, [&] {
          clients_[event.worker].is(State::kComputes) ? take_gradients(event.worker) : take_notice(event.worker);
        });
    }
    if (has_backup())
      is_first() ? decide() : follow();
    else if (is_synchronous())
      update_by_all();
    for (std::size_t before = 0; before != clients_.active();) {  // a loss may release workers that wait
      before = clients_.active();
      answer();
    }
  }

  // Calls call(), and if workers may fail, goes on without this one if it is lost.
  template <typename Call> void with_worker(std::size_t worker, const Call& call) {
    try {
      call();
    } catch (const PeerLost& error) {
      if (!job_.options.allow_worker_failures) throw;
      lose(worker, error.what());
    }
  }

  void lose(std::size_t worker, const std::string& why) {
    clients_[worker].state = State::kLost;
    clients_.link(worker).group->abort(fmt::format("{} goes on without {}", name_of(job_.tasks.own),
                                                   clients_.describe(worker)));  // if it lives, it ends, too
    const std::vector<ParameterClient>& all = clients_.all();
    const auto has_finished = [](const ParameterClient& client) { return client.is(State::kFinished); };
    if (clients_.active() == 0 && std::none_of(all.begin(), all.end(), has_finished))
      throw PeerLost("parameter_server: {}: {} is lost, and no worker is left: {}", name_of(job_.tasks.own),
                     clients_.describe(worker), why);
    if (worker == 0 && !has_begun_)
      throw PeerLost("parameter_server: {}: {} is lost before its first step, in which its weights begin the job: {}",
                     name_of(job_.tasks.own), clients_.describe(worker), why);
    log::warn("parameter_server: {}: {} is lost after step {}, and the job goes on with {} workers: {}",
              name_of(job_.tasks.own), clients_.describe(worker), clients_[worker].clock, clients_.active(), why);
  }

  void take_notice(std::size_t worker) {
    ParameterClient& client = clients_[worker];
    const Notice notice = client.notice_to_come;
    LOCKSTEP_CHECK(client.is(notice.kind == Notice::Kind::kComplete ? State::kArrived : State::kPaused),
                   "parameter_server: {} sends a notice while it waits", clients_.describe(worker));
    switch (notice.kind) {
      case Notice::Kind::kFinished:
        client.state = State::kFinished;
        has_begun_ |= worker == 0;
        return;
      case Notice::Kind::kCallEnded: client.state = State::kCallEnded; return;
      case Notice::Kind::kStep:
        LOCKSTEP_CHECK(has_backup() ? notice.step > client.clock : notice.step == client.clock + 1,
                       "parameter_server: {} begins step {} after {}", clients_.describe(worker), notice.step,
                       client.clock);
        client.notice = notice;
        client.state = State::kComputes;
        client.is_counted = false;
        return clients_.expect_floats(worker, gradients_[worker]);
      case Notice::Kind::kComplete: client.state = State::kWaits; break;
      case Notice::Kind::kWeights: take_weights(worker, notice.has_state != 0); break;
      case Notice::Kind::kFetch: send_state(worker); break;
      case Notice::Kind::kJoins: client.state = State::kJoins; break;
    }
    clients_.expect_notice(worker);
  }

  void take_weights(std::size_t worker, bool with_state) {
    receive(shard_.weights().data<float>(), static_cast<std::size_t>(shard_.floats()), DType::kFloat32, worker,
            kFloatsTag);
    if (!rest_.empty()) receive(rest_.data(), rest_.size(), DType::kUInt8, worker, kRestTag);
    if (with_state) {
      const std::string state = receive_text(clients_.link(worker), kStateTag);
      received_ += state.size();
      shard_.set_state(state);
    }
    has_begun_ = true;
    send_now(&clients_[worker].answer, sizeof(Answer), DType::kUInt8, worker, kAnswerTag);
  }

  void send_state(std::size_t worker) {
    clients_[worker].answer.global_step = updates_;
    if (is_first()) send_now(&clients_[worker].answer, sizeof(Answer), DType::kUInt8, worker, kAnswerTag);
    if (!is_synchronous() || has_backup()) {
      send_now(shard_.weights().data<float>(), static_cast<std::size_t>(shard_.floats()), DType::kFloat32, worker,
               kFloatsTag);
      sent_ += shard_.weights().bytes();
    }
    const std::string state = shard_.state();
    send_text(clients_.link(worker), state, kStateTag);
    sent_ += state.size();
  }

  void receive(void* data, std::size_t count, DType dtype, std::size_t worker, int tag) {
    clients_.link(worker).group->recv(data, count, dtype, clients_.link(worker).peer, tag);
    received_ += count * size_of(dtype);
  }
  void send_now(const void* data, std::size_t count, DType dtype, std::size_t worker, int tag) const {
    clients_.link(worker).group->send(data, count, dtype, clients_.link(worker).peer, tag);
  }

  void take_gradients(std::size_t worker) {
    ParameterClient& client = clients_[worker];
    received_ += gradients_[worker].bytes();
    client.clock = client.notice.step;
    client.state = has_backup() && is_first() ? State::kArrived : State::kWaits;
    clients_.expect_notice(worker);
    if (is_synchronous()) return;
    ++updates_;
    shard_.update(client.notice, gradients_[worker]);
  }

  // Updates by the mean of all gradients, when all have arrived.
  void update_by_all() {
    const std::vector<ParameterClient>& all = clients_.all();
    const auto waits = [](const ParameterClient& client) { return client.is(State::kWaits); };
    const auto waiting = std::find_if(all.begin(), all.end(), waits);
    if (waiting == all.end()) return;
    for (std::size_t i = 0; i < clients_.size(); ++i) check_goes_on(i, static_cast<std::size_t>(waiting - all.begin()));
    if (!std::all_of(all.begin(), all.end(), waits)) return;
    std::vector<std::size_t> workers(clients_.size());
    for (std::size_t i = 0; i < workers.size(); ++i) workers[i] = i;
    update_by(workers);
  }

  // Worker `waiting` waits for the gradients of `worker`.
  void check_goes_on(std::size_t worker, std::size_t waiting) {
    if (clients_[worker].is_active() && !clients_[worker].is(State::kCallEnded)) return;
    throw InvalidArgument(
        "parameter_server: {} has finished after {} steps, but {} is in step {}: synchronous workers must make the "
        "same number of steps; give them the same number of batches, or a .staleness above 0",
        clients_.describe(worker), clients_[worker].clock, clients_.describe(waiting), clients_[waiting].clock);
  }

  // On ps:0, with backup workers.
  void decide() {
    StepDecision decision{updates_ + 1, {}};
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (clients_[i].is(State::kWaits) && clients_[i].clock == decision.step) decision.workers.push_back(i);
    const std::size_t wanted = clients_.size() - static_cast<std::size_t>(job_.options.backup_workers);
    if (decision.workers.size() >= wanted) {
      decisions_.announce(decision);
      return update_by(decision.workers);
    }
    if (decision.workers.empty() || clients_.active() >= wanted) return;
    throw InvalidArgument(
        "parameter_server: {} is in step {}, and {} of {} workers are left, of which a step needs {}: with "
        ".backup_workers = {} all workers loop until global_step() of as<ParameterWorker>() has the end",
        clients_.describe(decision.workers.front()), decision.step, clients_.active(), clients_.size(), wanted,
        job_.options.backup_workers);
  }

  // On the other servers.
  void follow() {
    while (!decisions_.pending().empty()) {
      const StepDecision& decision = decisions_.pending().front();
      for (const std::size_t worker : decision.workers)
        if (!clients_[worker].is(State::kWaits) || clients_[worker].clock != decision.step) return;  // on their way
      update_by(decision.workers);
      decisions_.pending().pop_front();
    }
  }

  // The mean of these gradients, in the order of the workers.
  void update_by(const std::vector<std::size_t>& workers) {
    Device& device = cpu_device();
    const Tensor& mean = gradients_[workers.front()];
    for (const std::size_t worker : workers) {
      clients_[worker].is_counted = true;
      if (worker != workers.front()) device.kernels().add(mean, gradients_[worker], mean, device.default_stream());
    }
    device.kernels().scale(mean, 1 / static_cast<float>(workers.size()), mean, device.default_stream());
    ++updates_;
    shard_.update(clients_[workers.front()].notice, mean);
  }

  bool may_be_answered(const ParameterClient& client) const {
    if (!has_begun_ || !client.waits()) return false;
    if (client.is(State::kJoins)) return true;
    return has_backup() ? client.clock <= updates_ : client.clock - clients_.slowest() <= job_.options.staleness;
  }

  // Sends the weights to the workers that wait for them and are not too far ahead.
  void answer() {
    std::vector<std::pair<std::size_t, Work>> under_way;
    const auto send = [&](const void* data, std::size_t count, DType dtype, std::size_t worker, int tag) {
      const Link& link = clients_.link(worker);
      under_way.emplace_back(worker, link.group->send_async(data, count, dtype, link.peer, tag));
    };
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      ParameterClient& client = clients_[i];
      if (!may_be_answered(client)) continue;
      const bool joins = client.is(State::kJoins);
      if (has_backup() && !joins && !client.is_counted) ++client.answer.dropped;
      client.answer.global_step = updates_;
      client.state = State::kPaused;
      client.waited = {};
      with_worker(i, [&] {
        if (is_first()) send(&client.answer, sizeof(Answer), DType::kUInt8, i, kAnswerTag);
        send(shard_.weights().data<float>(), static_cast<std::size_t>(shard_.floats()), DType::kFloat32, i, kFloatsTag);
        if (joins && !rest_.empty()) send(rest_.data(), rest_.size(), DType::kUInt8, i, kRestTag);
        sent_ += shard_.weights().bytes() + (joins ? rest_.size() : 0);
      });
    }
    for (const auto& [worker, work] : under_way) {  // the workers are waiting for these, so no send blocks
      if (clients_[worker].is(State::kLost)) continue;
      with_worker(worker, [&work = work] { work.wait(); });
    }
  }

  ParameterServerJob job_;
  const ServerShard shard_;
  ParameterClients clients_;
  StepDecisions decisions_;
  Tensors gradients_;            // by worker
  std::vector<std::byte> rest_;  // of ps:0: see rest_of()
  std::int64_t updates_ = 0;
  std::uint64_t sent_ = 0, received_ = 0;
  bool has_begun_ = false;  // worker 0's weights have arrived, or it has finished without a step
  bool has_served_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_server(ParameterServerJob job) { return std::make_unique<Server>(std::move(job)); }

}  // namespace lockstep::train
