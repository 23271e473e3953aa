// Records every call on its way to another backend, for tests: operation, order, memory and time.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"

namespace lockstep {

struct RecordedCall {
  Operation operation;
  bool is_async = false;
  std::chrono::steady_clock::time_point issued, completed;
  bool is_complete = false;  // an asynchronous call: once a thread has waited for it, or polled it when it was done
};

struct RecordedMessage {
  Message message;
  bool is_receive = false;
  std::chrono::steady_clock::time_point issued;
};

// Failures to inject; calls count from 1, 0 is no call.
struct PlannedFailures {
  std::size_t starting = 0;  // the call throws PeerLost when it is issued, and is not recorded
  std::size_t waiting = 0;   // the call is executed; waiting for it throws PeerLost
};

// Any thread may read; the other calls are as in Backend.
class RecordingBackend : public Backend {
 public:
  explicit RecordingBackend(std::unique_ptr<Backend> inner);
  ~RecordingBackend() override;

  std::string_view name() const override { return "recording"; }
  std::string_view transport() const override { return inner_->transport(); }
  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  void run(const Operation& operation) override;
  Work start(const Operation& operation) override;
  Work start_chained(const Operation& operation, const Work& first) override {
    return inner_->start_chained(operation, first);
  }
  void await_idle() noexcept override { inner_->await_idle(); }
  Work send(const Message& message) override;
  Work receive(const Message& message) override;
  Buffer allocate(std::size_t bytes) override;
  void abort(const std::string& reason) override { inner_->abort(reason); }
  void leave() noexcept override { inner_->leave(); }
  TransportCounters counters() const override { return inner_->counters(); }
  void on_over(std::function<void(const std::string&)> call) override { inner_->on_over(std::move(call)); }

  // The calls in order. reserve() makes room for `calls` more, so that recording them needs no allocation.
  std::vector<RecordedCall> calls() const;
  std::vector<RecordedMessage> messages() const;
  std::vector<std::size_t> allocations() const;  // bytes of each
  std::size_t completed() const;                 // number of calls that are known to be complete
  void clear_calls();
  void reserve(std::size_t calls);
  void plan(const PlannedFailures& failures);

 private:
  class Record;
  std::shared_ptr<Record> record_;  // a Work may outlive the backend
  std::unique_ptr<Backend> inner_;
};

// The record of a group's calls; throws InvalidArgument if the group does not record.
RecordingBackend& recorded(Backend& backend);

}  // namespace lockstep
