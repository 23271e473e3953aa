// A server's record of its workers, and the wait for the next message from any of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

struct ParameterClient {
  enum class State {
    kPaused,
    kGives,  // its weights are on their way: see Notice::Kind::kWeights
    kJoins,  // waits for the weights, as in kWaits
    kComputes,
    kArrived,  // its gradients are here, and not yet on all other servers: see Notice::Kind::kComplete
    kWaits,
    kCallEnded,  // see CallServer and CallWorker
    kFinished,
    kLost,
  };

  State state = State::kPaused;
  std::int64_t clock = 0;   // steps; with backup workers the number of its last step
  Notice notice;            // the last one
  bool is_counted = false;  // its gradients are in the update of their step
  Answer answer;            // the last one
  bool is(State other) const { return state == other; }
  bool waits() const { return is(State::kJoins) || is(State::kWaits); }
  bool is_active() const { return !is(State::kFinished) && !is(State::kLost); }
  bool sends() const { return is_active() && !is(State::kCallEnded); }

  // The receive of its next message, if it sends.
  Notice notice_to_come;
  Work next;
  std::chrono::nanoseconds waited{0};
};

struct ServerEvent {
  enum class Kind {
    kMessage,   // from `worker`
    kDecision,  // from ps:0
    kLost,      // `worker`, because of `why`, in a job that goes on without it
  };
  Kind kind = Kind::kMessage;
  std::size_t worker = 0;
  std::string why = {};
};

// An error in messages of a worker, in a job that goes on without it.
class LostWorker : public Error {
 public:
  LostWorker(std::size_t worker, const std::string& why) : Error(why), worker_(worker) {}
  std::size_t worker() const { return worker_; }

 private:
  std::size_t worker_;
};

// A receive of each worker's next message is always pending, so that a worker that leaves is noticed at once.
class ParameterClients {
 public:
  // `job` outlives this.
  explicit ParameterClients(const ParameterServerJob& job) : job_(job), clients_(job.tasks.workers.size()) {}

  std::size_t size() const { return clients_.size(); }
  ParameterClient& operator[](std::size_t worker) { return clients_[worker]; }
  const std::vector<ParameterClient>& all() const { return clients_; }
  std::string describe(std::size_t worker) const { return job_.tasks.describe(job_.tasks.workers[worker]); }
  const Link& link(std::size_t worker) const { return job_.links[worker]; }
  bool send_no_more() const;     // all have ended a call, finished or are lost
  std::int64_t slowest() const;  // the smallest clock of the active workers
  std::size_t active() const;    // their number
  // Whether worker 0's weights have arrived, or it has finished without a step. Before that no worker is answered.
  bool has_begun() const { return has_begun_; }
  void begin() { has_begun_ = true; }

  // Begin the receive of a worker's next message. Throw LostWorker, as below.
  void expect_notice(std::size_t worker);
  void expect_floats(std::size_t worker, const Tensor& floats);
  // Blocks until something has happened. Waits for paused workers as long as they live. `decision` is a receive from
  // ps:0. Throws TimeoutError with the workers that keep another one waiting longer than the group's deadline, and
  // PeerLost for a worker that leaves; if workers may fail, these are events.
  ServerEvent next(const std::optional<Work>& decision);

  // Messages to and from a worker. Throw LostWorker for any error of its link if workers may fail. What is sent lives
  // until its Work is done.
  Work send_answer(std::size_t worker);  // ParameterClient::answer
  Work send_floats(std::size_t worker, const Tensor& floats);
  Work send_rest(std::size_t worker, const std::vector<std::byte>& rest);
  void send_state(std::size_t worker, const std::string& state);
  void send_rate(std::size_t worker, float lr);
  void send_stop(std::size_t worker, bool is_requested);
  void receive_floats(std::size_t worker, const Tensor& floats);
  void receive_rest(std::size_t worker, std::vector<std::byte>& rest);
  std::string receive_state(std::size_t worker);
  void wait(std::size_t worker, const Work& work) const;

  std::uint64_t sent() const { return sent_; }  // bytes, without notices and answers
  std::uint64_t received() const { return received_; }
  void count_received(std::uint64_t bytes) { received_ += bytes; }  // of an expect_floats()

  // Goes on without this worker, and logs that with `why`. Throws PeerLost if no worker is left, and if the loss leaves
  // the job without weights.
  void lose(std::size_t worker, const std::string& why);

 private:
  template <typename Call> auto over_link(std::size_t worker, const Call& call) const;
  void expect(std::size_t worker, void* data, std::size_t count, DType dtype, int tag);
  std::optional<ServerEvent> wait_for_any(const std::vector<std::size_t>& workers, const std::optional<Work>& decision);
  std::optional<ServerEvent> look_at_each(const std::vector<std::size_t>& workers) const;
  ServerEvent overdue(std::size_t waiting) const;

  const ParameterServerJob& job_;
  std::vector<ParameterClient> clients_;  // by worker
  bool has_begun_ = false;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace lockstep::train
