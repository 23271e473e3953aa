#include "src/core/process/compute_threads.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "lockstep/core/device.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/process/process_limits.h"

namespace lockstep {

namespace {

constexpr int kMaxCores = 8192;

std::atomic<int> threads_set{0};

// The share of this thread, see ComputeShare; number -1: none.
thread_local int share_number = -1, share_count = 1;

// True while this thread computes parts of the pool's job. If such a part splits its work again, this thread computes
// it alone, one part after the other: the pool is busy, and a thread must not try a mutex that it holds.
thread_local bool computes_part = false;

// 0: unset, or a value that OpenMP would not understand.
int threads_of_environment() {
  const std::string text = env::text("OMP_NUM_THREADS").value_or("");
  int threads = 0;
  std::from_chars(text.data(), text.data() + text.size(), threads);
  return std::max(threads, 0);
}

// One call of in_parallel.
class Job {
 public:
  Job(std::int64_t parts, const PartOfWork& work) : parts_(parts), work_(work) {}

  void help() noexcept {
    for (std::int64_t part = next_++; part < parts_; part = next_++) {
      try {
        work_(part);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        next_ = parts_;
      }
    }
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const std::int64_t parts_;
  const PartOfWork& work_;
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

// Threads that wait for jobs, one job at a time. They run until the process ends.
class ThreadPool {
 public:
  pid_t owner() const { return owner_; }

  // Returns false, and does nothing, if the pool is busy with another thread's job.
  bool run(Job& job, int helpers) {
    const std::unique_lock use(in_use_, std::try_to_lock);
    if (!use) return false;
    std::unique_lock lock(mutex_);
    hire(helpers);
    job_ = &job;
    wanted_ = std::min(helpers, hired_);
    lock.unlock();
    has_job_.notify_all();
    computes_part = true;
    job.help();
    computes_part = false;
    lock.lock();
    wanted_ = 0;
    has_ended_.wait(lock, [this] { return at_work_ == 0; });
    return true;
  }

 private:
  // Starts fewer threads if the system allows no more. The threads block all signals, which belong to the program's own
  // threads, except faults: a handler that writes a stack trace must see them.
  void hire(int helpers) {
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    try {
      for (; hired_ < helpers; ++hired_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void serve() {
    computes_part = true;
    std::unique_lock lock(mutex_);
    for (;;) {
      has_job_.wait(lock, [this] { return wanted_ > 0; });
      --wanted_, ++at_work_;
      Job& job = *job_;
      lock.unlock();
      job.help();
      lock.lock();
      if (--at_work_ == 0) has_ended_.notify_all();
    }
  }

  const pid_t owner_ = ::getpid();
  std::mutex in_use_, mutex_;
  std::condition_variable has_job_, has_ended_;
  Job* job_ = nullptr;
  int hired_ = 0, wanted_ = 0, at_work_ = 0;
};

// The pool of this process, or of this thread's share. A forked child has its parent's memory but not its threads, so
// it creates its own pool.
ThreadPool& thread_pool() {
  static std::array<std::atomic<ThreadPool*>, kMaxComputeShares + 1> all{};
  std::atomic<ThreadPool*>& one = all[static_cast<std::size_t>(share_number + 1)];
  ThreadPool* standing = one.load();
  while (standing == nullptr || standing->owner() != ::getpid()) {
    auto made = std::make_unique<ThreadPool>();
    if (one.compare_exchange_strong(standing, made.get())) return *made.release();
  }
  return *standing;
}

}  // namespace

std::vector<int> affinity() {
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMaxCores),
                                                             [](cpu_set_t* made) { CPU_FREE(made); });
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCores);
  if (!set || ::sched_getaffinity(0, bytes, set.get()) != 0)
    throw Error("cannot read the CPU affinity: {}", std::strerror(errno));
  std::vector<int> cores;
  for (int core = 0; core < kMaxCores; ++core)
    if (CPU_ISSET_S(core, bytes, set.get())) cores.push_back(core);
  return cores;
}

namespace {

int threads_of_process() {
  static const int kAsked = threads_of_environment();
  if (kAsked > 0) return kAsked;
  if (const int set = threads_set.load(); set > 0) return set;
  static const int kAll = [] {
    try {
      const auto quota = cpu_quota();
      const int cores = static_cast<int>(affinity().size());
      return quota ? std::min(cores, quota->cores) : cores;
    } catch (const Error&) {
      return 1;  // the system does not report it
    }
  }();
  return kAll;
}

}  // namespace

int compute_threads() { return std::max(threads_of_process() / share_count, 1); }

ComputeShare::ComputeShare(int number, int count) : number_before_(share_number), count_before_(share_count) {
  LOCKSTEP_CHECK(number >= 0 && number < count && count <= kMaxComputeShares, "share {} of {}", number, count);
  share_number = number;
  share_count = count;
}
ComputeShare::~ComputeShare() {
  share_number = number_before_;
  share_count = count_before_;
}

void set_compute_threads(int threads) { threads_set = threads; }

void in_parallel(std::int64_t parts, const PartOfWork& work) {
  const int helpers = static_cast<int>(std::min<std::int64_t>(parts, compute_threads())) - 1;
  Job job(parts, work);
  if (helpers < 1 || computes_part || !thread_pool().run(job, helpers)) job.help();
  job.rethrow();
}

void sum_of_parts(std::int64_t parts, std::int64_t count, float* total,
                  const std::function<void(std::int64_t part, float* to)>& compute) {
  const std::int64_t at_once = std::min<std::int64_t>(parts, compute_threads());
  Buffer aside;
  if (parts > 1) aside = cpu_device().allocate(std::max<std::int64_t>(at_once, 1) * count * sizeof(float));
  const auto place_of = [&](std::int64_t part) {
    return part == 0 ? total : reinterpret_cast<float*>(aside.data()) + part % at_once * count;
  };
  for (std::int64_t first = 0; first < parts; first += at_once) {
    const std::int64_t last = std::min(parts, first + at_once);
    in_parallel(last - first, [&](std::int64_t nth) { compute(first + nth, place_of(first + nth)); });
    for (std::int64_t part = std::max<std::int64_t>(first, 1); part < last; ++part)
      cpu_device().kernels().add({total, {count}}, {place_of(part), {count}}, {total, {count}},
                                 cpu_device().default_stream());
  }
}

}  // namespace lockstep
