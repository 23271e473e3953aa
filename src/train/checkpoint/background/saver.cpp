#include "src/train/checkpoint/background/saver.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/base/error_of_peer.h"
#include "src/train/checkpoint/checkpoint_format.h"
#include "src/train/checkpoint/failed_save.h"
#include "src/train/checkpoint/folder/job.h"

namespace lockstep::train::checkpoint {

namespace {

constexpr int kLowestPriority = 19;  // gets the processor's time that the training leaves

// While it lives, threads that are made handle no signals: those are for the program's own threads. A file that grows
// beyond its limit is then an error of the write.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t most;
    ::sigfillset(&most);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) ::sigdelset(&most, fault);
    ::pthread_sigmask(SIG_SETMASK, &most, &before_);
  }
  ~WithoutSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

// Linux has priorities of threads; without the right of a priority, the thread runs as the others.
void take_lowest_priority() { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kLowestPriority); }

// All savers of this process.
class Savers {
 public:
  static Savers& all() {
    static auto* const kSavers = new Savers;  // never destroyed: threads may outlive main()
    return *kSavers;
  }

  std::shared_ptr<Saver> find(const ProcessGroup* group) {
    const std::lock_guard lock(mutex_);
    const auto found = by_group_.find(group);
    return found == by_group_.end() ? nullptr : found->second;
  }

  void add(const ProcessGroup* group, std::shared_ptr<Saver> saver) {
    const std::lock_guard lock(mutex_);
    if (!waits_at_exit_) {
      this_job(), metadata();  // what the threads use must be destroyed later
      waits_at_exit_ = std::atexit([] { all().await_all(); }) == 0;
    }
    by_group_[group] = std::move(saver);
  }

  void remove(const ProcessGroup* group) {
    const std::shared_ptr<Saver> saver = find(group);
    if (saver) saver->await_end();
    const std::lock_guard lock(mutex_);
    by_group_.erase(group);
  }

 private:
  void await_all() {
    std::vector<std::shared_ptr<Saver>> savers;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [_, saver] : by_group_) savers.push_back(saver);
    }
    for (const auto& saver : savers) saver->await_end();
  }

  std::mutex mutex_;
  std::map<const ProcessGroup*, std::shared_ptr<Saver>> by_group_;
  bool waits_at_exit_ = false;
};

// How a save ended that threw `error`.
LastSave end_of(const std::exception_ptr& error) {
  LastSave last;
  const auto set = [&last](SaveEnd end, bool is_of_peer, const char* text) {
    last.end = end, last.is_of_peer = is_of_peer, last.text = text;
  };
  try {
    std::rethrow_exception(error);
  } catch (const FileError& failure) {
    set(is_refusal(failure) ? SaveEnd::kRefused : SaveEnd::kFailed,
        dynamic_cast<const FileErrorOfPeer*>(&failure) != nullptr, failure.what());
  } catch (const PeerLost& failure) {
    set(SaveEnd::kFailed, true, failure.what());
  } catch (const TimeoutError& failure) {
    set(SaveEnd::kFailed, true, failure.what());
  } catch (const ErrorOfPeer& failure) {
    set(SaveEnd::kBroken, true, failure.what());
  } catch (const std::exception& failure) {
    set(SaveEnd::kBroken, false, failure.what());
  }
  return last;
}

}  // namespace

std::shared_ptr<Saver> Saver::find(GroupRef group) {
  const std::shared_ptr<Saver> saver = Savers::all().find(group.get());
  return saver && saver->is_of_this_process() ? saver : nullptr;
}

std::shared_ptr<Saver> Saver::of(GroupRef group) {
  if (auto saver = find(group)) return saver;
  const auto saver = std::make_shared<Saver>(group);
  Savers::all().add(group.get(), saver);
  if (ProcessGroup* const ranks = group.get()) ranks->before_leaving([ranks] { Savers::all().remove(ranks); });
  return saver;
}

Saver::Saver(GroupRef group) : rank_(group.rank()), ranks_(group.world_size()), process_(::getpid()) {}

// A thread that was given up goes on alone, and holds this object until its end.
Saver::~Saver() {
  if (thread_.joinable()) thread_.detach();
}

bool Saver::is_of_this_process() const { return process_ == ::getpid(); }

const std::shared_ptr<ProcessGroup>& Saver::writers(ProcessGroup& group) {
  // Only texts travel, so that the group needs no GPU. The training's group is never used by the threads.
  if (!writers_) writers_ = group.split(0, group.rank(), {.backend = "host", .device = &cpu_device()});
  return writers_;
}

void Saver::start(SavePlan plan) {
  const std::lock_guard lock(mutex_);
  plan.progress = &progress_;
  last_ = {.is_running = true, .stops = plan.on_error == OnSaveError::kStop, .step = plan.step};
  try {
    const WithoutSignals mask;
    thread_ = std::thread([self = shared_from_this(), plan = std::move(plan), writers = writers_]() mutable {
      take_lowest_priority();
      self->run(std::move(plan), writers);
    });
  } catch (const std::system_error& error) {
    last_.is_running = false, last_.end = SaveEnd::kBroken;
    last_.text = fmt::format("save_checkpoint: rank {}: no thread can be made that writes: {}", rank_, error.what());
    if (writers_) writers_->abort(last_.text);
  }
}

void Saver::run(SavePlan plan, const std::shared_ptr<ProcessGroup>&) noexcept {
  LastSave last;
  try {
    last.text = run_save(plan);
    last.end = SaveEnd::kSaved;
  } catch (...) {
    last = end_of(std::current_exception());
    if (!plan.is_sliced && ranks_ > 1) last.text = fmt::format("save_checkpoint: rank {}: {}", rank_, last.text);
    if (last.end == SaveEnd::kFailed && plan.on_error == OnSaveError::kContinue && rank_ == 0)
      warn_not_saved(plan.folder, plan.step, last.text);
  }
  plan.files.clear();  // the next save may use the memory
  end(std::move(last));
}

void Saver::end(LastSave last) noexcept {
  const std::lock_guard lock(mutex_);
  last.stops = last_.stops, last.step = last_.step;
  last_ = std::move(last);
  ended_.notify_all();
}

bool Saver::await(std::chrono::milliseconds longest) {
  if (!is_of_this_process()) return true;
  std::unique_lock lock(mutex_);
  if (!ended_.wait_for(lock, longest, [this] { return !last_.is_running; })) return false;
  if (thread_.joinable()) thread_.join();  // it does not take the mutex again
  return true;
}

void Saver::await_end() noexcept {
  if (!is_of_this_process()) return;
  std::uint64_t before = progress_;
  while (!await(kLongestStandstill))
    if (const std::uint64_t now = std::exchange(before, progress_); now == before) break;
  const LastSave last = this->last();
  if (last.is_running)
    log::error("save_checkpoint: step {} is not saved: the disk has taken nothing for {} minutes", last.step,
               kLongestStandstill.count());
  else if (last.end == SaveEnd::kBroken || last.end == SaveEnd::kRefused ||
           (last.end == SaveEnd::kFailed && last.stops))
    log::error("step {} is not saved: {}", last.step, last.text);
}

LastSave Saver::last() const {
  const std::lock_guard lock(mutex_);
  LastSave last = last_;
  last.bytes_so_far = progress_;
  return last;
}

void Saver::forget_last() {
  const std::lock_guard lock(mutex_);
  if (!last_.is_running) last_ = {};  // a thread without a group may have begun another one
}

}  // namespace lockstep::train::checkpoint
