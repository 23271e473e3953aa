// The worker of `parameter_server`: it computes gradients with the servers' weights. parameter_server.cpp draws both.
//
// A worker announces its step to the servers, sends each server the gradients of its parameters after backward, and
// returns when all servers have sent their weights: model() is as current as the servers are then. With several devices
// the gradients are averaged over a copy of the model on each, and sent once. Buffers (statistics of batch
// normalisation) are each worker's own; save worker 0's, like rank 0's under ddp.
#include <cmath>
#include <exception>
#include <span>

#include "src/core/base/message_text.h"
#include "src/core/process/progress_page.h"
#include "src/train/strategies/parameter_server/worker/server_links.h"
#include "src/train/strategies/parameter_server/worker/worker_model.h"
#include "src/train/strategies/served_calls.h"

namespace lockstep::train {

namespace {

class Worker : public Strategy, public ParameterWorker, public PartLosses, public CallWorker {
 public:
  explicit Worker(ParameterServerJob job)
      : job_(std::move(job)),
        model_(job_),
        links_(job_),
        acknowledgements_(job_.links.size()),
        exceptions_(std::uncaught_exceptions()) {}

  // The servers end when all workers have sent that they have finished; without that the entire job would wait forever.
  // In a job of calls they end with the last call.
  ~Worker() override {
    try {
      if (is_in_step_ || std::uncaught_exceptions() > exceptions_)
        abort("");
      else if (!expects_calls_)
        links_.notify_all(notice(Notice::Kind::kFinished));
    } catch (const std::exception&) {
      // The group is over: a step has reported that, or the program's next call will.
    }
  }

  const char* name() const override { return kParameterServer; }
  const std::vector<Device*>& devices() const override { return job_.devices; }
  std::shared_ptr<ProcessGroup> workers() const override { return job_.workers; }

  float step(const Tensor& inputs, const Tensor& targets) override { return weighted_step(inputs, targets, 1); }
  float weighted_step(const Tensor& inputs, const Tensor& targets, float weight) override {
    check_samples(kParameterServer, inputs, targets);
    if (!std::isfinite(weight) || weight < 0)
      throw InvalidArgument("{}: {}: got weight {}; expected a finite number of 0 or more", kParameterServer,
                            name_of(job_.tasks.own), weight);
    if (is_in_step_)
      throw InvalidArgument("{}: {}: step {} has failed: the strategy is over", kParameterServer,
                            name_of(job_.tasks.own), steps_ + 1);
    is_in_step_ = true;
    float loss = 0;
    try {
      loss = train_on(inputs, targets, weight);
    } catch (...) {
      abort(fmt::format(": {}", exception_text(std::current_exception())));
      throw;
    }
    ++steps_;
    note_optimizer_step();  // the servers' optimizers make it
    has_old_state_ = true;
    is_in_step_ = false;
    return loss;
  }

  nn::Module& model() override { return *model_.replica().model; }
  std::vector<NamedLoss> step_losses() const override { return model_.losses(); }
  std::vector<NamedLoss> losses() const override {
    std::vector<NamedLoss> named;
    for (std::size_t i = 0; i < model_.part_losses().size(); ++i)
      named.push_back({fmt::format("part_{}/loss", i), model_.part_losses()[i]});
    return named;
  }
  std::vector<DeviceTraffic> traffic() const override { return model_.traffic(links_.sent(), links_.received()); }

  // A copy of the servers' state, which makes no steps.
  optim::Optimizer& optimizer() override {
    if (!optimizer_) {
      optimizer_ = make_optimizer(kParameterServer, job_.training, model_.replica().parameters);
      if (lr_) optimizer_->set_lr(*lr_);
    }
    if (has_begun_ && std::exchange(has_old_state_, false)) job_.tasks.with_names([this] { fetch(); });
    return *optimizer_;
  }
  float lr() override {
    if (lr_) return *lr_;
    if (optimizer_ && !(has_begun_ && has_old_state_)) return optimizer_->lr();
    // Not kept: an optimizer that the caller has seen gives its state to the servers.
    if (!has_begun_) return make_optimizer(kParameterServer, job_.training, model_.replica().parameters)->lr();
    float lr = 0;
    job_.tasks.with_names([&] {
      links_.notify(0, notice(Notice::Kind::kFetchRate));
      lr = links_.receive_rate();
    });
    return lr;
  }
  void set_lr(float lr) override {
    if (!optim::is_rate(lr))
      throw InvalidArgument("{}: got a learning rate of {}; expected a finite number from 0 on", kParameterServer, lr);
    lr_ = lr;
    if (optimizer_) optimizer_->set_lr(lr);
  }

  void update_replicas() override {
    if (!has_begun_) return;  // the first step does so
    job_.tasks.with_names([this] {
      if (is_first()) give();
      job_.workers->barrier();
      if (!is_first()) take();
    });
  }

  bool should_stop() override {
    std::int32_t is_requested = 0;
    job_.tasks.with_names([&] {
      is_requested = links_.fetch_stop_request(notice(Notice::Kind::kFetchStop)) ? 1 : 0;
      if (is_synchronous())
        job_.workers->all_reduce(std::span(&is_requested, 1), ReduceOp::kMax, {.purpose = {"stop request"}});
    });
    return is_requested != 0;
  }

  std::int64_t global_step() const override { return answer_.global_step; }
  std::int64_t dropped_gradients() const override { return answer_.dropped; }

  void expect_calls() override { expects_calls_ = true; }
  void end_call(const std::string& result) override {
    links_.notify_all(notice(Notice::Kind::kCallEnded));
    if (is_first()) links_.send_result(result);
  }

 private:
  bool is_first() const { return job_.tasks.own.index == 0; }
  bool has_backup() const { return job_.options.backup_workers > 0; }
  bool is_synchronous() const { return job_.options.staleness == 0 && !has_backup(); }

  void abort(const std::string& reason) {
    job_.abort(
        fmt::format("parameter_server: {} has failed in step {}{}", name_of(job_.tasks.own), steps_ + 1, reason));
  }

  float train_on(const Tensor& inputs, const Tensor& targets, float weight) {
    job_.tasks.with_names([this] {
      if (!has_begun_) begin();
      links_.notify_all(notice(Notice::Kind::kStep));
    });
    const float loss = model_.compute_gradients(inputs, targets, weight);
    job_.tasks.with_names([this] { exchange(); });
    return loss;
  }

  // The servers begin with worker 0's weights, frozen parameters, buffers and optimizer; all other workers take these
  // over.
  void begin() {
    is_first() ? give() : take();
    has_begun_ = true;
  }

  void give() {
    follow_loaded_rate();
    const Tensor& weights = model_.weights_to_send();
    model_.spread_rest();
    const std::vector<std::byte> rest = bytes_of(rest_of(model_.replica()));
    links_.notify_all(notice(Notice::Kind::kWeights));
    for (std::size_t server = 0; server < links_.size(); ++server) {
      links_.wait(server, links_.send_floats(server, weights));
      if (server == 0) links_.send_rest(rest);
      if (gives_state()) links_.send_state(server, pack_state(*optimizer_, model_.state_on(server)));
    }
    for (std::size_t server = 0; server < links_.size(); ++server)
      links_.wait(server, links_.receive_answer(server, acknowledgements_[server]));
    if (!optimizer_) has_old_state_ = true;
  }

  void take() {
    follow_loaded_rate();
    const std::vector<NamedTensor> rest = rest_of(model_.replica());
    std::vector<std::byte> bytes = bytes_of(rest);
    links_.notify_all(notice(Notice::Kind::kJoins));
    ServerLinks::Works under_way = links_.receive_weights(model_.received_weights(), answer_);
    under_way[0].push_back(links_.receive_rest(bytes));
    links_.wait(under_way);
    set_to_bytes(rest, bytes);
    model_.take_over_weights();
    model_.spread_rest();
    has_old_state_ = true;
  }

  // Between two steps the caller may have changed the optimizer's state, if it has called optimizer().
  bool gives_state() const { return optimizer_ && !has_old_state_; }
  void follow_loaded_rate() {
    if (gives_state()) lr_ = optimizer_->lr();
  }
  // In a synchronous step all have the servers' weights, and the caller may have changed them.
  bool fetches_weights() const { return has_backup() || job_.options.staleness > 0; }

  // Sends gradients and receives weights, to and from all servers at once.
  void exchange() {
    const ServerLinks::Works answers = links_.receive_weights(model_.received_weights(), answer_);
    links_.wait(links_.send_floats(model_.gradients()));
    if (has_backup()) links_.notify(0, notice(Notice::Kind::kComplete));
    links_.wait(answers);
    model_.take_over_weights();
  }

  void fetch() {
    links_.notify_all(notice(Notice::Kind::kFetch));
    for (std::size_t server = 0; server < links_.size(); ++server) {
      if (server == 0) links_.wait(server, links_.receive_answer(server, answer_));
      if (fetches_weights()) links_.wait(server, links_.receive_floats(server, model_.received_weights()));
      unpack_state(*optimizer_, model_.state_on(server), links_.receive_state(server));
    }
    if (lr_) optimizer_->set_lr(*lr_);  // which the servers may not have yet
    if (fetches_weights()) model_.take_over_weights();
  }

  Notice notice(Notice::Kind kind) const {
    return {.kind = kind,
            .lr = lr_.value_or(0),
            .has_lr = lr_ ? 1 : 0,
            .has_state = static_cast<std::int16_t>(gives_state() ? 1 : 0),
            .step = (has_backup() ? answer_.global_step : steps_) + 1};
  }

  ParameterServerJob job_;
  WorkerModel model_;
  ServerLinks links_;
  std::unique_ptr<optim::Optimizer> optimizer_;  // null before the first optimizer()
  std::vector<Answer> acknowledgements_;         // by server
  Answer answer_;                                // the last one of ps:0
  std::optional<float> lr_;
  const int exceptions_;
  bool is_in_step_ = false;     // or has failed in one
  bool has_begun_ = false;      // the servers have worker 0's weights
  bool has_old_state_ = false;  // the servers have changed it since optimizer_ got it
  bool expects_calls_ = false;
  std::int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_worker(ParameterServerJob job) { return std::make_unique<Worker>(std::move(job)); }

}  // namespace lockstep::train
