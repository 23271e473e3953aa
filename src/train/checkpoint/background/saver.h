// The thread that writes a group's checkpoints beside the training, one at a time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/comm/agreement.h"
#include "src/train/checkpoint/background/host_copies.h"
#include "src/train/checkpoint/checkpoint_plan.h"

namespace lockstep::train::checkpoint {

enum class SaveEnd {
  kNone,     // nothing was saved since the last report
  kSaved,    // on a rank that wrote files
  kFailed,   // the file system or a peer failed
  kRefused,  // the folder belongs to another job
  kBroken,   // another exception
};

// The last save, as this rank knows it.
struct LastSave {
  bool is_running = false;
  SaveEnd end = SaveEnd::kNone;
  bool is_of_peer = false;  // the error arose on another rank
  bool stops = false;       // a failure is to end the training
  std::int64_t step = 0;
  std::string text = {};           // the error; or on rank 0 the checkpoint's folder
  std::uint64_t bytes_so_far = 0;  // grows while this rank writes
};

class Saver : public std::enable_shared_from_this<Saver> {
 public:
  // The group's; for null, that of this process alone. find() returns null if the group has none; of() makes it, and
  // ends it with the group, before this rank leaves. At the program's end all of them are waited for.
  static std::shared_ptr<Saver> find(GroupRef group);
  static std::shared_ptr<Saver> of(GroupRef group);

  explicit Saver(GroupRef group);
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Held while a save begins: threads without a group may share this object.
  std::mutex& beginning() { return beginning_; }
  HostCopies& copies() { return copies_; }
  // Collective: the group in which the threads of all ranks meet. It is made at the first call, and after a failure.
  const std::shared_ptr<ProcessGroup>& writers(ProcessGroup& group);
  void drop_writers() { writers_.reset(); }

  // Runs the plan in a thread. No save may be running.
  void start(SavePlan plan);
  // Returns whether no save is running after at most that time.
  bool await(std::chrono::milliseconds longest);
  // Waits as long as something is written in every 5 minutes. Logs an error that no call has reported.
  void await_end() noexcept;
  static constexpr std::chrono::minutes kLongestStandstill{5};

  LastSave last() const;
  void forget_last();

 private:
  void run(SavePlan plan, const std::shared_ptr<ProcessGroup>& writers) noexcept;
  void end(LastSave last) noexcept;
  bool is_of_this_process() const;

  const int rank_, ranks_;
  const pid_t process_;  // a forked child has no such thread
  std::mutex beginning_;
  HostCopies copies_;
  std::shared_ptr<ProcessGroup> writers_;
  std::atomic<std::uint64_t> progress_{0};
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable ended_;
  LastSave last_;
  std::thread thread_;
};

}  // namespace lockstep::train::checkpoint
