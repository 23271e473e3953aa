// Streams and events of the recording device: threads with queues, and the work that is captured for a graph.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {

// The work that all streams of a device queued, and the number of the host's waits.
class Log {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }
  template <typename Change> void count(Change&& change) {
    const std::lock_guard lock(mutex_);
    change(counts_);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  RecordingDevice::Counts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    lines_.clear();
    counts_ = {};
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  RecordingDevice::Counts counts_;
};

// A flag that one stream sets and others wait for.
class Flag {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool is_set() const {
    const std::lock_guard lock(mutex_);
    return set_;
  }
  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return set_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool set_ = false;
};

class ThreadStream;

// How far a place in a capture is ordered after each participating stream: stream number to position.
using CaptureClock = std::map<int, int>;

// A capture under way. Its work is kept in the order of queueing; a replay runs it in that order, in one stream.
struct Capture {
  std::mutex mutex;
  bool over = false;
  std::vector<std::function<void()>> work;
  std::map<ThreadStream*, CaptureClock> streams;  // the participating streams, and how far each is
};

class ThreadStream : public Stream, public HostStream {
 public:
  ThreadStream(int number, Log& log, StreamAllocator& allocator)
      : number_(number), log_(log), allocator_(allocator), thread_([this] { serve(); }) {}
  ~ThreadStream() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
    allocator_.forget(*this);
  }

  void push(std::string what, std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    if (capture_) {
      if (!what.empty()) log_.add("captured, stream " + std::to_string(number_) + ": " + what);
      const std::lock_guard capture_lock(capture_->mutex);
      ++capture_->streams[this][number_];
      capture_->work.push_back(std::move(work));
      return;
    }
    if (!what.empty()) log_.add("stream " + std::to_string(number_) + ": " + what);
    queue_.push_back(std::move(work));
    ++pushed_;
    changed_.notify_all();
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    if (capture_) throw InvalidArgument("recording device: the host cannot wait for work that is recorded as a graph");
    log_.count([](auto& counts) { ++counts.host_waits; });
    changed_.wait(lock, [&, until = pushed_] { return done_ >= until; });
  }
  void* native() const override { return const_cast<HostStream*>(static_cast<const HostStream*>(this)); }
  bool is_capturing() const override { return capture() != nullptr; }
  bool is_recorded() const override { return is_capturing(); }
  Buffer take_scratch(std::size_t bytes) override {
    log_.count([&](auto& counts) { ++counts.scratches[number_]; });
    return allocator_.allocate_on(*this, bytes);
  }

  std::shared_ptr<Capture> capture() const {
    const std::lock_guard lock(mutex_);
    return capture_;
  }
  void set_capture(std::shared_ptr<Capture> capture) {
    const std::lock_guard lock(mutex_);
    capture_ = std::move(capture);
  }
  Log& log() const { return log_; }

 private:
  // Finishes the queued work before it ends, as destroying a CUDA stream does.
  void serve() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
      work = nullptr;
      const std::lock_guard lock(mutex_);
      ++done_;
      changed_.notify_all();
    }
  }

  const int number_;
  Log& log_;
  StreamAllocator& allocator_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::uint64_t pushed_ = 0, done_ = 0;
  bool stop_ = false;
  std::shared_ptr<Capture> capture_;
  std::thread thread_;
};

// Also of another library's stream, whose native() is one of these.
inline ThreadStream& as_thread(Stream& stream) {
  return static_cast<ThreadStream&>(*static_cast<HostStream*>(stream.native()));
}

// As in CUDA: an event that was never recorded is done, and a wait refers to the latest record. An event that was
// recorded in a capture is valid only in that capture, where it makes other streams participate; events from outside
// are invalid inside.
class FlagEvent : public Event {
 public:
  explicit FlagEvent(Log& log) : log_(log) {}
  void record(Stream& stream) override {
    capture_ = as_thread(stream).capture();
    flag_ = std::make_shared<Flag>();
    as_thread(stream).push("record", [flag = flag_] { flag->set(); });
    if (!capture_) return;
    const std::lock_guard lock(capture_->mutex);
    clock_ = capture_->streams[&as_thread(stream)];
  }
  void stream_wait(Stream& later) override {
    ThreadStream& stream = as_thread(later);
    if (!flag_) return;
    if (!capture_) {
      if (stream.is_capturing())
        throw Error("recording device: a captured stream was ordered behind work from outside the capture");
      return stream.push("wait", [flag = flag_] { flag->wait(); });
    }
    {
      const std::lock_guard lock(capture_->mutex);
      if (capture_->over) throw Error("recording device: a stream was ordered behind work of a capture that is over");
    }
    if (stream.capture() != capture_) stream.set_capture(capture_);
    stream.push("wait", [] {});
    const std::lock_guard lock(capture_->mutex);
    for (const auto& [number, position] : clock_) {
      int& known = capture_->streams[&stream][number];
      known = std::max(known, position);
    }
  }
  bool done() const override {
    refuse_captured();
    return !flag_ || flag_->is_set();
  }
  void synchronize() override {
    refuse_captured();
    if (!flag_) return;
    log_.count([](auto& counts) { ++counts.host_waits; });
    flag_->wait();
  }

 private:
  void refuse_captured() const {
    if (capture_) throw Error("recording device: the host asked for an event of a capture");
  }

  Log& log_;
  std::shared_ptr<Flag> flag_;
  std::shared_ptr<Capture> capture_;
  CaptureClock clock_;
};

class RecordedGraph : public Graph {
 public:
  RecordedGraph(std::vector<std::function<void()>> work, std::shared_ptr<void> memory)
      : work_(std::make_shared<const Work>(std::move(work))), memory_(std::move(memory)) {}
  void launch(Stream& stream) override {
    as_thread(stream).log().count([](auto& counts) { ++counts.launches; });
    as_thread(stream).push("graph", [work = work_] {
      for (const auto& each : *work) each();
    });
  }

 private:
  using Work = std::vector<std::function<void()>>;
  std::shared_ptr<const Work> work_;
  std::shared_ptr<void> memory_;
};

inline void begin_capture(ThreadStream& stream) {
  auto capture = std::make_shared<Capture>();
  capture->streams[&stream];
  stream.set_capture(std::move(capture));
}

// Returns the captured work. Throws Error if a participating stream was not joined at the end.
inline std::vector<std::function<void()>> end_capture(ThreadStream& stream) {
  const auto capture = stream.capture();
  if (!capture) throw InvalidArgument("recording device: no graph is being recorded");
  std::map<ThreadStream*, CaptureClock> streams;
  std::vector<std::function<void()>> work;
  {  // no longer than this: a stream that queues locks its own mutex first
    const std::lock_guard lock(capture->mutex);
    capture->over = true;
    streams = capture->streams;
    work = std::move(capture->work);
  }
  const CaptureClock known = streams[&stream];
  bool is_joined = true;
  for (const auto& [other, clock] : streams) {
    other->set_capture(nullptr);
    for (const auto& [number, position] : clock)
      is_joined = is_joined && known.count(number) != 0 && known.at(number) >= position;
  }
  if (!is_joined)
    throw Error(
        "recording device: a stream took part in the capture, and nothing orders the captured stream behind it");
  return work;
}

}  // namespace lockstep::testing
