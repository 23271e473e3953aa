#include "src/comm/flight/flight_log.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/net/host_names.h"
#include "src/core/process/fd.h"
#include "src/core/process/first_process.h"
#include "src/core/process/stop_request.h"

namespace lockstep::flight {

namespace {

constexpr std::size_t kFailedKept = 4;

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, id);
  return id;
}

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

// Handles signals while groups exist. The handler only writes to an eventfd, on which a thread sleeps. SIGUSR1 writes
// the record. SIGTERM, which is handled only if records go to a folder, ends the process as usual once the record is
// written: otherwise a launcher that ends the other ranks after a failure would destroy their records.
class SignalThread {
 public:
  struct Calls {
    std::function<void()> on_request, before_the_end;  // if before_the_end is empty, SIGTERM is not handled
  };
  explicit SignalThread(Calls calls);
  ~SignalThread();

 private:
  static constexpr std::uint64_t kRequest = 1, kEnd = std::uint64_t{1} << 32;

  static void handle(int signal) {
    const int saved = errno;
    const std::uint64_t what = signal == SIGTERM ? kEnd : kRequest;
    if (owner_.load() == getpid()) {
      [[maybe_unused]] const auto written = ::write(wake_fd_.load(), &what, sizeof what);
    } else if (signal == SIGTERM) {
      // A forked child shares the descriptor and has no thread: it ends as if there were no handler.
      std::signal(SIGTERM, SIG_DFL);
      ::raise(SIGTERM);
    }
    errno = saved;
  }
  // True also if the handler is ours: a forked child inherits it from its parent.
  static bool is_free(int signal) {
    struct sigaction current {};
    sigaction(signal, nullptr, &current);
    return is_default_action(current.sa_handler) || current.sa_handler == handle;
  }
  void take(int signal);
  void put_back();
  void serve();

  static inline std::atomic<int> wake_fd_{-1};
  static inline std::atomic<pid_t> owner_{0};
  Calls calls_;
  Fd wake_;
  std::vector<int> taken_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

SignalThread::SignalThread(Calls calls) : calls_(std::move(calls)), wake_(eventfd(0, EFD_CLOEXEC)) {
  const bool takes_request = is_free(SIGUSR1), takes_end = calls_.before_the_end && is_free(SIGTERM);
  if (!wake_ || (!takes_request && !takes_end)) return;
  wake_fd_.store(wake_.get());
  owner_.store(getpid());
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { serve(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (takes_request) take(SIGUSR1);
  if (!takes_end) return;
  note_end_handler(handle);
  take(SIGTERM);
}

SignalThread::~SignalThread() {
  if (!thread_.joinable()) return;
  put_back();
  stop_.store(true);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
  owner_.store(0);
}

void SignalThread::take(int signal) {
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
  taken_.push_back(signal);
}

void SignalThread::put_back() {
  for (const int signal : taken_) {
    struct sigaction current {};
    sigaction(signal, nullptr, &current);
    if (current.sa_handler == handle) std::signal(signal, SIG_DFL);
  }
  end_on_signals_as_first_process();
}

void SignalThread::serve() {
  std::uint64_t what = 0;
  while (::read(wake_.get(), &what, sizeof what) == static_cast<ssize_t>(sizeof what)) {
    if (what >= kEnd) {
      calls_.before_the_end();
      end_by_signal(SIGTERM);
    }
    if (stop_.load()) return;
    if (what % kEnd != 0) calls_.on_request();
  }
}

class Log {
 public:
  // A forked child has its parent's memory but none of its threads, so it begins with a new log.
  static Log& of_this_process() {
    static std::mutex mutex;
    static Log* log = nullptr;
    const std::lock_guard lock(mutex);
    if (log == nullptr || log->pid_ != getpid()) {
      // Keeps them reachable, so that they do not count as leaks.
      [[maybe_unused]] static auto& parents = *new std::vector<Log*>;
      if (log != nullptr) parents.push_back(log);
      log = new Log;
    }
    return *log;
  }

  void add(const std::shared_ptr<RecordedGroup>& group);
  void remove(const std::shared_ptr<RecordedGroup>& group);
  void write(int job_rank, const std::string& reason, const std::string& path);
  void write_failure(const RecordedGroup& group) noexcept;
  void write_all(const std::string& reason) noexcept;

 private:
  std::string write_locked(int job_rank, const std::string& reason, const std::string& path);
  FlightDump dump(int job_rank, const std::string& reason, const ClockReading& clock) const;

  const pid_t pid_ = getpid();
  const std::optional<std::string> folder_ = env::text(env::kFlightDir);
  const bool takes_signals_ = env::integer(env::kFlightSignal, 0, 1).value_or(1) != 0;
  std::mutex signals_mutex_;  // guards signals_; locked before mutex_
  std::optional<SignalThread> signals_;
  std::mutex mutex_;  // guards the members below, and is held while a file is written
  std::vector<std::shared_ptr<RecordedGroup>> groups_, failed_;
};

void Log::add(const std::shared_ptr<RecordedGroup>& group) {
  group->recorder.on_failure([raw = group.get()] {
    end_at_stop_signals();
    Log::of_this_process().write_failure(*raw);
  });
  const std::lock_guard signals_lock(signals_mutex_);
  {
    const std::lock_guard lock(mutex_);
    groups_.push_back(group);
  }
  if (!takes_signals_ || signals_) return;
  SignalThread::Calls calls{[this] { write_all("SIGUSR1"); }, {}};
  if (folder_) calls.before_the_end = [this] { write_all("SIGTERM"); };
  signals_.emplace(std::move(calls));
}

void Log::remove(const std::shared_ptr<RecordedGroup>& group) {
  const std::lock_guard signals_lock(signals_mutex_);
  bool is_last;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(groups_.begin(), groups_.end(), group);
    if (found == groups_.end()) return;
    groups_.erase(found);
    is_last = groups_.empty();
    if (group->recorder.has_failed()) failed_.push_back(group);
    if (failed_.size() > kFailedKept) failed_.erase(failed_.begin());
  }
  if (is_last) signals_.reset();  // outside the lock: its thread may be writing, and needs the other mutex for it
}

FlightDump Log::dump(int job_rank, const std::string& reason, const ClockReading& clock) const {
  static const std::string kHost = host_name(), kBoot = boot_id();
  FlightDump dump;
  dump.rank = job_rank;
  dump.host = kHost;
  dump.pid = pid_;
  dump.boot_id = kBoot;
  dump.reason = reason;
  dump.written_ns = clock.now_wall_ns();
  dump.monotonic_ns = clock.now_monotonic_ns();
  for (const auto* list : {&failed_, &groups_})
    for (const auto& group : *list) {
      if (group->job_rank != job_rank) continue;
      dump.job = group->job;
      dump.world_size = group->job_world_size;
      FlightGroup record = group->recorder.snapshot(clock);
      FlightGroup described = group->description;
      described.failure = std::move(record.failure);
      described.operations = std::move(record.operations);
      described.messages = std::move(record.messages);
      dump.groups.push_back(std::move(described));
    }
  return dump;
}

std::string Log::write_locked(int job_rank, const std::string& reason, const std::string& path) {
  std::filesystem::path to = path;
  if (path.empty()) to = std::filesystem::path(folder_.value()) / flight_file_name(job_rank);
  const ClockReading clock;
  write_flight_file(to, to_json(dump(job_rank, reason, clock)));
  return to.string();
}

void Log::write(int job_rank, const std::string& reason, const std::string& path) {
  if (path.empty() && !folder_)
    throw InvalidArgument(
        "flight record: there is no destination: name a file, or set {} (lockrun --flight-dir) to a folder",
        env::kFlightDir);
  const std::lock_guard lock(mutex_);
  write_locked(job_rank, reason, path);
}

// Never throws, so that the original error is thrown.
void Log::write_failure(const RecordedGroup& group) noexcept {
  try {
    if (folder_) {
      const std::lock_guard lock(mutex_);
      const std::string path = write_locked(group.job_rank, "error", "");
      log::info("flight record: {}; `lockrun diagnose {}` explains all ranks' records together", path, *folder_);
    } else if (group.job_rank == 0 && group.job_world_size > 1) {
      log::info(
          "set {}=DIR (or lockrun --flight-dir DIR) to have each rank's last operations written there, for `lockrun "
          "diagnose DIR`",
          env::kFlightDir);
    }
  } catch (const std::exception& error) {
    log::warn("{}", error.what());
  }
}

void Log::write_all(const std::string& reason) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    const ClockReading clock;
    std::set<int> ranks;
    for (const auto& group : groups_) ranks.insert(group->job_rank);
    for (const int rank : ranks) {
      if (reason == "SIGTERM") {  // no message: the last lines on stderr are for the rank that failed first
        write_locked(rank, reason, "");
        continue;
      }
      for (const FlightGroup& group : dump(rank, reason, clock).groups)
        log::info("{}: rank {}, group {}: {}", reason, rank, group.name, what_it_does(group, clock.now_wall_ns()));
      if (folder_) log::info("flight record: {}", write_locked(rank, reason, ""));
    }
  } catch (const std::exception& error) {
    log::warn("{}", error.what());
  }
}

}  // namespace

void add(const std::shared_ptr<RecordedGroup>& group) { Log::of_this_process().add(group); }

void remove(const std::shared_ptr<RecordedGroup>& group) noexcept { Log::of_this_process().remove(group); }

void write(int job_rank, const std::string& reason, const std::string& path) {
  Log::of_this_process().write(job_rank, reason, path);
}

std::string what_it_does(const FlightGroup& group, std::int64_t now_ns) {
  const auto open = std::find_if(group.operations.begin(), group.operations.end(),
                                 [](const FlightEntry& entry) { return !entry.has_ended(); });
  if (open != group.operations.end())
    return fmt::format("in {} for {:.1f} s", describe(*open), seconds(now_ns - open->issued_ns));
  if (group.operations.empty()) return "has made no call yet";
  const FlightEntry& last = group.operations.back();
  return fmt::format("in no collective; the last, {}, {} {:.1f} s ago", describe(last),
                     last.state == FlightState::kFailed ? "failed" : "finished", seconds(now_ns - last.ended_ns));
}

}  // namespace lockstep::flight
