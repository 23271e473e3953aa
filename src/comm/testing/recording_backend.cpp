#include "src/comm/testing/recording_backend.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {

using Clock = std::chrono::steady_clock;

class RecordingBackend::Record : public CompletionQueue {
 public:
  std::uint64_t add(const Operation& operation, bool is_async) {
    const std::lock_guard lock(mutex_);
    if (failures_.starting == calls_.size() + 1)
      throw PeerLost("recording: call {} was to fail when it starts", failures_.starting);
    calls_.push_back({operation, is_async, Clock::now(), {}, false});
    works_.emplace_back();
    return cleared_ + calls_.size();
  }
  void set_work(std::uint64_t ticket, Work work) {
    const std::lock_guard lock(mutex_);
    if (ticket > cleared_) works_[ticket - cleared_ - 1] = std::move(work);
  }
  void set_complete(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    if (ticket <= cleared_ || calls_[ticket - cleared_ - 1].is_complete) return;
    calls_[ticket - cleared_ - 1].completed = Clock::now();
    calls_[ticket - cleared_ - 1].is_complete = true;
  }

  bool done(std::uint64_t ticket) override {
    if (!work_of(ticket).done()) return false;
    set_complete(ticket);
    return true;
  }
  void wait(std::uint64_t ticket) override {
    work_of(ticket).wait();
    throw_if_planned(ticket);
    set_complete(ticket);
  }
  void stream_wait(std::uint64_t ticket, Stream& stream) override {
    work_of(ticket).stream_wait(stream);
    throw_if_planned(ticket);
    set_complete(ticket);
  }

  void throw_if_planned(std::uint64_t ticket) const {
    const std::lock_guard lock(mutex_);
    if (failures_.waiting != 0 && ticket == cleared_ + failures_.waiting)
      throw PeerLost("recording: call {} was to fail when it is waited for", failures_.waiting);
  }

  // Reads or changes the record.
  template <typename Use> auto with(Use&& use) {
    const std::lock_guard lock(mutex_);
    return use(*this);
  }
  void clear() {
    cleared_ += calls_.size();
    calls_.clear();
    works_.clear();
  }

  std::vector<RecordedCall> calls_;
  std::vector<Work> works_;  // of the calls
  std::vector<RecordedMessage> messages_;
  std::vector<std::size_t> allocations_;
  PlannedFailures failures_;

 private:
  Work work_of(std::uint64_t ticket) const {
    const std::lock_guard lock(mutex_);
    return ticket > cleared_ ? works_[ticket - cleared_ - 1] : Work();
  }

  mutable std::mutex mutex_;
  std::uint64_t cleared_ = 0;  // number of calls that were forgotten
};

RecordingBackend::RecordingBackend(std::unique_ptr<Backend> inner)
    : record_(std::make_shared<Record>()), inner_(std::move(inner)) {}
RecordingBackend::~RecordingBackend() = default;

void RecordingBackend::run(const Operation& operation) {
  const std::uint64_t ticket = record_->add(operation, false);
  inner_->run(operation);
  record_->throw_if_planned(ticket);
  record_->set_complete(ticket);
}

Work RecordingBackend::start(const Operation& operation) {
  const std::uint64_t ticket = record_->add(operation, true);
  record_->set_work(ticket, inner_->start(operation));
  return Work(record_, ticket);
}

Work RecordingBackend::send(const Message& message) {
  record_->with([&](Record& record) { record.messages_.push_back({message, false, Clock::now()}); });
  return inner_->send(message);
}

Work RecordingBackend::receive(const Message& message) {
  record_->with([&](Record& record) { record.messages_.push_back({message, true, Clock::now()}); });
  return inner_->receive(message);
}

Buffer RecordingBackend::allocate(std::size_t bytes) {
  record_->with([&](Record& record) { record.allocations_.push_back(bytes); });
  return inner_->allocate(bytes);
}

std::vector<RecordedCall> RecordingBackend::calls() const {
  return record_->with([](Record& record) { return record.calls_; });
}
std::vector<RecordedMessage> RecordingBackend::messages() const {
  return record_->with([](Record& record) { return record.messages_; });
}
std::vector<std::size_t> RecordingBackend::allocations() const {
  return record_->with([](Record& record) { return record.allocations_; });
}
std::size_t RecordingBackend::completed() const {
  return record_->with([](Record& record) {
    const auto count = std::count_if(record.calls_.begin(), record.calls_.end(),
                                     [](const RecordedCall& call) { return call.is_complete; });
    return static_cast<std::size_t>(count);
  });
}
void RecordingBackend::clear_calls() {
  record_->with([](Record& record) { record.clear(); });
}
void RecordingBackend::reserve(std::size_t calls) {
  record_->with([calls](Record& record) {
    record.calls_.reserve(record.calls_.size() + calls);
    record.works_.reserve(record.works_.size() + calls);
  });
}
void RecordingBackend::plan(const PlannedFailures& failures) {
  record_->with([&](Record& record) { record.failures_ = failures; });
}

RecordingBackend& recorded(Backend& backend) {
  auto* const recording = dynamic_cast<RecordingBackend*>(&backend);
  if (recording == nullptr)
    throw InvalidArgument("backend '{}' does not record calls: choose 'recording'", backend.name());
  return *recording;
}

}  // namespace lockstep
