// The hand-over of complete gradients from the threads of branches to the thread that calls backward().
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

namespace lockstep {

// Inputs of a node whose gradients branches have completed, by number. The caller's thread takes them in an order that
// does not depend on time: all of the last branch, then those of the one before it, as in a tape of one thread.
class CompletedInputs {
 public:
  explicit CompletedInputs(std::size_t branches) : branches_(branches) {}

  void add(std::size_t branch, std::size_t input) {
    const std::lock_guard lock(mutex_);
    branches_[branch].inputs.push_back(input);
    changed_.notify_all();
  }
  void end(std::size_t branch) {
    const std::lock_guard lock(mutex_);
    branches_[branch].has_ended = true;
    changed_.notify_all();
  }
  // A branch has failed: no one waits for the others' inputs.
  void stop() {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
  }

  template <typename Take> void take_all(const Take& take) {
    for (std::size_t b = branches_.size(); b-- > 0;) {
      std::unique_lock lock(mutex_);
      for (std::size_t next = 0;;) {
        changed_.wait(lock, [&] { return is_stopped_ || branches_[b].has_ended || next < branches_[b].inputs.size(); });
        if (is_stopped_) return;
        if (next == branches_[b].inputs.size()) break;
        const std::size_t input = branches_[b].inputs[next++];
        lock.unlock();
        take(input);
        lock.lock();
      }
    }
  }

 private:
  struct OfBranch {
    std::deque<std::size_t> inputs;
    bool has_ended = false;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<OfBranch> branches_;
  bool is_stopped_ = false;
};

}  // namespace lockstep
