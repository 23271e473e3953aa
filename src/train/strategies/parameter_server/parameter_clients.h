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
    kJoins,  // waits for the weights, as in kWaits
    kComputes,
    kArrived,  // its gradients are here, and not yet on all other servers: see Notice::Kind::kComplete
    kWaits,
    kCallEnded,  // see ServedCalls
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

  void expect_notice(std::size_t worker);
  void expect_floats(std::size_t worker, const Tensor& floats);
  // Blocks until something has happened. Waits for paused workers as long as they live. `decision` is a receive from
  // ps:0. Throws TimeoutError with the workers that keep another one waiting longer than the group's deadline, and
  // PeerLost for a worker that leaves, unless workers may fail.
  ServerEvent next(const std::optional<Work>& decision);

 private:
  std::optional<ServerEvent> wait_for_any(const std::vector<std::size_t>& workers, const std::optional<Work>& decision);
  std::optional<ServerEvent> look_at_each(const std::vector<std::size_t>& workers) const;
  std::optional<ServerEvent> overdue(std::size_t waiting) const;

  const ParameterServerJob& job_;
  std::vector<ParameterClient> clients_;  // by worker
};

}  // namespace lockstep::train
