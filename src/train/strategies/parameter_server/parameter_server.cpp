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
#include "src/core/base/message_text.h"
#include "src/core/process/stop_request.h"
#include "src/train/strategies/parameter_server/server/parameter_clients.h"
#include "src/train/strategies/parameter_server/server/server_updates.h"
#include "src/train/strategies/served_calls.h"

namespace lockstep::train {

namespace {

class Server : public Strategy, public ParameterHolder, public CallServer {
 public:
  explicit Server(ParameterServerJob job)
      : job_(std::move(job)), shard_(job_), clients_(job_), updates_(job_, shard_, clients_) {
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
  std::vector<DeviceTraffic> traffic() const override {
    return {{job_.devices.front(), clients_.sent(), clients_.received()}};
  }

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
          if (clients_[i].sends()) survive([&] { clients_.expect_notice(i); });
        StepDecisions& decisions = updates_.decisions();
        decisions.expect();
        while (!clients_.send_no_more() || !decisions.is_over()) take(clients_.next(decisions.next()));
        if (has_backup() && is_first()) decisions.end();
      });
    } catch (...) {
      job_.abort(exception_text(std::current_exception()));
      throw;
    }
  }

  void take(const ServerEvent& event) {
    switch (event.kind) {
      case ServerEvent::Kind::kDecision: updates_.decisions().take(); break;
      case ServerEvent::Kind::kLost: clients_.lose(event.worker, event.why); break;
      case ServerEvent::Kind::kMessage:
        survive([&] {
          clients_[event.worker].is(State::kComputes) ? take_gradients(event.worker) : take_notice(event.worker);
        });
    }
    updates_.update_by_steps();
    for (std::size_t before = 0; before != clients_.active();) {  // a loss may release workers that wait
      before = clients_.active();
      answer();
    }
  }

  // Calls call(), and goes on without a worker that is lost in it.
  template <typename Call> void survive(const Call& call) {
    try {
      call();
    } catch (const LostWorker& lost) {
      clients_.lose(lost.worker(), lost.what());
    }
  }

  void take_notice(std::size_t worker) {
    ParameterClient& client = clients_[worker];
    const Notice notice = client.notice_to_come;
    LOCKSTEP_CHECK(client.is(notice.kind == Notice::Kind::kComplete ? State::kArrived : State::kPaused),
                   "parameter_server: {} sends a notice while it waits", clients_.describe(worker));
    switch (notice.kind) {
      case Notice::Kind::kFinished:
        client.state = State::kFinished;
        if (worker == 0) clients_.begin();
        return;
      case Notice::Kind::kCallEnded: client.state = State::kCallEnded; return;
      case Notice::Kind::kStep:
        LOCKSTEP_CHECK(has_backup() ? notice.step > client.clock : notice.step == client.clock + 1,
                       "parameter_server: {} begins step {} after {}", clients_.describe(worker), notice.step,
                       client.clock);
        client.notice = notice;
        client.state = State::kComputes;
        client.is_counted = false;
        return clients_.expect_floats(worker, updates_.gradients(worker));
      case Notice::Kind::kComplete: client.state = State::kWaits; break;
      case Notice::Kind::kWeights: take_weights(worker, notice.has_state != 0); break;
      case Notice::Kind::kFetch: send_state(worker); break;
      case Notice::Kind::kFetchRate: clients_.send_rate(worker, shard_.optimizer().lr()); break;
      case Notice::Kind::kFetchStop: answer_stop(worker, notice.is_stop_requested != 0); break;
      case Notice::Kind::kJoins: client.state = State::kJoins; break;
    }
    clients_.expect_notice(worker);
  }

  // Takes them over when all have come: a worker that is lost on the way leaves the weights as they are. The memory of
  // its gradients is free between two steps, and laid out as the weights are.
  void take_weights(std::size_t worker, bool with_state) {
    clients_[worker].state = State::kGives;
    clients_.receive_floats(worker, updates_.gradients(worker));
    std::vector<std::byte> rest(rest_.size());
    clients_.receive_rest(worker, rest);
    if (with_state) shard_.set_state(clients_.receive_state(worker));
    shard_.weights().copy_from(updates_.gradients(worker));
    rest_ = std::move(rest);
    clients_[worker].state = State::kPaused;
    clients_.begin();
    clients_.wait(worker, clients_.send_answer(worker));
  }

  void send_state(std::size_t worker) {
    clients_[worker].answer.global_step = updates_.count();
    if (is_first()) clients_.wait(worker, clients_.send_answer(worker));
    if (!is_synchronous() || has_backup()) clients_.wait(worker, clients_.send_floats(worker, shard_.weights()));
    clients_.send_state(worker, shard_.state());
  }

  // As in should_stop(), signals end this process until the first request. What one worker has received reaches all.
  void answer_stop(std::size_t worker, bool is_requested_there) {
    remember_stop_signals();
    stop_is_requested_ = stop_is_requested_ || is_requested_there || is_stop_requested();
    clients_.send_stop(worker, stop_is_requested_);
  }

  void take_gradients(std::size_t worker) {
    ParameterClient& client = clients_[worker];
    clients_.count_received(updates_.gradients(worker).bytes());
    client.clock = client.notice.step;
    client.state = has_backup() && is_first() ? State::kArrived : State::kWaits;
    clients_.expect_notice(worker);
    if (!is_synchronous()) updates_.update_by(worker);
  }

  bool may_be_answered(const ParameterClient& client) const {
    if (!clients_.has_begun() || !client.waits()) return false;
    if (client.is(State::kJoins)) return true;
    return has_backup() ? client.clock <= updates_.count()
                        : client.clock - clients_.slowest() <= job_.options.staleness;
  }

  // Sends the weights to the workers that wait for them and are not too far ahead.
  void answer() {
    std::vector<std::pair<std::size_t, Work>> under_way;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      ParameterClient& client = clients_[i];
      if (!may_be_answered(client)) continue;
      const bool joins = client.is(State::kJoins);
      if (has_backup() && !joins && !client.is_counted) ++client.answer.dropped;
      client.answer.global_step = updates_.count();
      client.state = State::kPaused;
      client.waited = {};
      survive([&] {
        if (is_first()) under_way.emplace_back(i, clients_.send_answer(i));
        under_way.emplace_back(i, clients_.send_floats(i, shard_.weights()));
        if (joins) under_way.emplace_back(i, clients_.send_rest(i, rest_));
      });
    }
    for (const auto& [worker, work] : under_way) {  // the workers are waiting for these, so no send blocks
      if (clients_[worker].is(State::kLost)) continue;
      survive([&, worker = worker, &work = work] { clients_.wait(worker, work); });
    }
  }

  ParameterServerJob job_;
  const ServerShard shard_;
  ParameterClients clients_;
  ServerUpdates updates_;
  std::vector<std::byte> rest_;  // of ps:0: see rest_of()
  bool has_served_ = false, stop_is_requested_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_server(ParameterServerJob job) { return std::make_unique<Server>(std::move(job)); }

}  // namespace lockstep::train
