// Compiled without sanitizers, so that calls of this file do not count as synchronisation between threads.
#include "tests/kernels/emulated_cuda/blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef EMULATED_UNDER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef EMULATED_UNDER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#include "tests/kernels/emulated_cuda/switch_contexts.h"

namespace emulated_cuda {

namespace {

constexpr std::size_t kMostThreads = 1024, kWarp = 32, kUsualShared = 48 * 1024, kMostShared = 99 * 1024;
constexpr std::size_t kStackBytes = 256 * 1024;
#ifdef EMULATED_UNDER_TSAN
constexpr bool kFiberPerThread = true;  // a fiber with several threads would order them
#else
constexpr bool kFiberPerThread = false;
#endif

enum class State { kNew, kReady, kAtBarrier, kAtShuffle, kDone };

struct Thread {
  State state = State::kNew;
  int fiber = -1;
  int vote = 0;
  unsigned mask = 0;  // arguments of a shuffle
  int wanted_lane = 0;
  std::uint64_t given = 0, got = 0;
  std::size_t warp_barriers = 0;
};

// A stack on which threads run, one at a time; kept from launch to launch.
struct Fiber {
  Context context;
  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  bool is_idle = true;
  void* fake_stack = nullptr;
  void* tsan = nullptr;

  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
#ifdef EMULATED_UNDER_TSAN
    if (tsan != nullptr) __tsan_destroy_fiber(tsan);
#endif
  }
};

class Multiprocessor {
 public:
  void run(Dim3 grid, Dim3 block, std::size_t shared_bytes, const char* kernel, const std::function<void()>& body) {
    const std::lock_guard lock(mutex_);
    ++launches_;
    kernel_ = kernel;
    body_ = &body;
    place_.grid = grid;
    place_.block_size = block;
    threads_count_ = block.count();
    for (std::size_t i = 0; i < grid.count(); ++i) {
      const std::size_t index = order_ == Order::kForwards ? i : grid.count() - 1 - i;
      place_.block = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
                      static_cast<unsigned>(index / grid.x / grid.y)};
      // Dynamic shared memory is new forevery block and initially NaN; arrays of a fixed size keep the previous
      // block's values.
      const std::unique_ptr<std::byte[]> shared(new std::byte[shared_bytes]);
      std::memset(shared.get(), 0xff, shared_bytes);
      shared_ = shared.get();
      run_block();
    }
  }
  void set_order(Order order) {
    const std::lock_guard lock(mutex_);
    order_ = order;
  }

  std::size_t launches() {
    const std::lock_guard lock(mutex_);
    return launches_;
  }

  const Place& place() const { return place_; }
  int lane() const { return static_cast<int>(current_ % kWarp); }
  std::byte* shared() const { return shared_; }

  int barrier(int predicate) {
    threads_[current_].vote = predicate;
    wait(State::kAtBarrier);
    return vote_;
  }
  std::uint64_t exchange(unsigned mask, std::uint64_t value, int lane) {
    Thread& thread = threads_[current_];
    thread.given = value;
    thread.mask = mask;
    thread.wanted_lane = lane;
    wait(State::kAtShuffle);
    return thread.got;
  }
  // Tokens alternate for the reason that wait() gives.
  void warp_barrier() {
    char* const token = &warp_tokens_[current_ / kWarp][threads_[current_].warp_barriers++ % 2];
    order_release(token);
    exchange(~0U, 0, lane());
    order_acquire(token);
  }

  bool allow_shared(const void* kernel, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes <= kMostShared) allowed_shared_[kernel] = bytes;
    return bytes <= kMostShared;
  }
  std::size_t allowed_shared(const void* kernel) {
    const std::lock_guard lock(mutex_);
    const auto found = allowed_shared_.find(kernel);
    return found != allowed_shared_.end() ? std::max(found->second, kUsualShared) : kUsualShared;
  }

 private:
  std::size_t in_order(std::size_t i) const { return order_ == Order::kForwards ? i : threads_count_ - 1 - i; }

  void run_block() {
    threads_.fill({});
    order_of_block_begins();
    for (;;) {
      for (next_ = 0; next_ < threads_count_; ++next_) {
        const std::size_t thread = in_order(next_);
        if (threads_[thread].state == State::kNew || threads_[thread].state == State::kReady) resume(thread);
      }
      std::size_t done = 0;
      for (std::size_t t = 0; t < threads_count_; ++t) done += threads_[t].state == State::kDone ? 1 : 0;
      if (done == threads_count_) break;
      if (!release_warps() && !release_barrier()) fail(done);
    }
    order_of_block_ends();
  }

  // Lanes continue together when all lanes that their masks name have arrived, with the same mask.
  bool release_warps() {
    bool any = false;
    for (std::size_t first = 0; first < threads_count_; first += kWarp)
      for (std::size_t lane = 0; lane < kWarp && first + lane < threads_count_; ++lane)
        if (threads_[first + lane].state == State::kAtShuffle && all_are_there(first, threads_[first + lane].mask)) {
          release_lanes(first, threads_[first + lane].mask);
          any = true;
        }
    return any;
  }
  bool all_are_there(std::size_t first, unsigned mask) const {
    for (std::size_t lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1U) == 0) continue;
      if (first + lane >= threads_count_) return false;
      const Thread& thread = threads_[first + lane];
      if (thread.state != State::kAtShuffle || thread.mask != mask || (mask >> thread.wanted_lane & 1U) == 0)
        return false;
    }
    return true;
  }
  void release_lanes(std::size_t first, unsigned mask) {
    for (std::size_t lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1U) == 0) continue;
      Thread& thread = threads_[first + lane];
      thread.got = threads_[first + static_cast<std::size_t>(thread.wanted_lane)].given;
      thread.state = State::kReady;
    }
  }

  bool release_barrier() {
    int vote = 0;
    for (std::size_t t = 0; t < threads_count_; ++t) {
      if (threads_[t].state != State::kAtBarrier) return false;
      vote |= threads_[t].vote != 0 ? 1 : 0;
    }
    for (std::size_t t = 0; t < threads_count_; ++t) threads_[t].state = State::kReady;
    vote_ = vote;
    ++barriers_;
    return true;
  }

  // Destroys the stack of a thread that waits forever, with everything on it: kernels have no objects that need a
  // destructor. As for threads that end, its work comes before the host's next step.
  void give_up(std::unique_ptr<Fiber>& fiber) {
#ifdef EMULATED_UNDER_TSAN
    void* const here = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber->tsan, __tsan_switch_to_fiber_no_sync);
    order_release(&end_token_);
    __tsan_switch_to_fiber(here, __tsan_switch_to_fiber_no_sync);
#endif
    fiber = nullptr;
  }

  [[noreturn]] void fail(std::size_t done) {
    std::size_t at_barrier = 0, at_shuffle = 0;
    for (std::size_t t = 0; t < threads_count_; ++t) {
      at_barrier += threads_[t].state == State::kAtBarrier ? 1 : 0;
      at_shuffle += threads_[t].state == State::kAtShuffle ? 1 : 0;
      if (threads_[t].state != State::kDone) give_up(fibers_[static_cast<std::size_t>(threads_[t].fiber)]);
    }
    order_of_block_ends();
    throw std::logic_error(std::string(kernel_) + ": of " + std::to_string(threads_count_) + " threads of a block " +
                           std::to_string(at_barrier) + " wait in __syncthreads(), " + std::to_string(at_shuffle) +
                           " in a shuffle whose lanes do not arrive or read others, and " + std::to_string(done) +
                           " have ended: they wait forever");
  }

  // Switches from the scheduler to a thread, and back when it waits or when its fiber has finished.
  void resume(std::size_t thread) {
    if (threads_[thread].state == State::kNew) threads_[thread].fiber = idle_fiber();
    Fiber& fiber = *fibers_[static_cast<std::size_t>(threads_[thread].fiber)];
    fiber.is_idle = false;
    enter(thread);
#ifdef EMULATED_UNDER_TSAN
    scheduler_tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef EMULATED_UNDER_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStackBytes);
#endif
    switch_contexts(scheduler_, fiber.context);
#ifdef EMULATED_UNDER_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }
  void switch_to_scheduler(Fiber& fiber) {
#ifdef EMULATED_UNDER_TSAN
    __tsan_switch_to_fiber(scheduler_tsan_, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef EMULATED_UNDER_ASAN
    __sanitizer_start_switch_fiber(&fiber.fake_stack, scheduler_stack_, scheduler_stack_bytes_);
#endif
    switch_contexts(fiber.context, scheduler_);
    arrived_on(fiber);
  }
  void arrived_on([[maybe_unused]] Fiber& fiber) {
#ifdef EMULATED_UNDER_ASAN
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
  }

  void wait(State state) {
    const std::size_t thread = current_;
    threads_[thread].state = state;
    const std::size_t turn = barriers_ % 2;  // a thread may arrive at the next one before all have left this one
    if (state == State::kAtBarrier) order_release(&barrier_tokens_[turn]);
    switch_to_scheduler(*fibers_[static_cast<std::size_t>(threads_[thread].fiber)]);
    if (state == State::kAtBarrier) order_acquire(&barrier_tokens_[turn]);
  }

  void enter(std::size_t thread) {
    current_ = thread;
    const Dim3& size = place_.block_size;
    place_.thread = {static_cast<unsigned>(thread % size.x), static_cast<unsigned>(thread / size.x % size.y),
                     static_cast<unsigned>(thread / size.x / size.y)};
  }

  // Threads that never wait run one after the other on one fiber.
  void run_threads_on(Fiber& fiber) {
    arrived_on(fiber);
    for (;;) {
      order_acquire(&begin_token_);
      (*body_)();
      order_release(&end_token_);
      threads_[current_].state = State::kDone;
      const int own = threads_[current_].fiber;
      std::size_t next = next_ + 1;
      if (!kFiberPerThread && next < threads_count_ && threads_[in_order(next)].state == State::kNew) {
        next_ = next;
        threads_[in_order(next)].fiber = own;
        enter(in_order(next));
        continue;
      }
      fiber.is_idle = !kFiberPerThread;
      switch_to_scheduler(fiber);
    }
  }
  static void begin_fiber();

  static void prepare(Fiber& fiber) {
    ucontext_t& begin = fiber.context.begin;
    getcontext(&begin);
    begin.uc_stack.ss_sp = fiber.stack.get();
    begin.uc_stack.ss_size = kStackBytes;
    begin.uc_link = nullptr;
    makecontext(&begin, begin_fiber, 0);
    begin.uc_stack = {};  // otherwise ASan would clear its records of the entire stack at swapcontext()
#ifdef EMULATED_UNDER_TSAN
    fiber.tsan = __tsan_create_fiber(0);
#endif
  }
  int idle_fiber() {
    std::size_t index = 0;
    while (index < fibers_.size() && fibers_[index] != nullptr && !fibers_[index]->is_idle) ++index;
    if (index == fibers_.size()) fibers_.emplace_back();
    if (fibers_[index] == nullptr) {
      fibers_[index] = std::make_unique<Fiber>();
      prepare(*fibers_[index]);
    }
    return static_cast<int>(index);
  }

  static void order_release([[maybe_unused]] void* token) {
#ifdef EMULATED_UNDER_TSAN
    __tsan_release(token);
#endif
  }
  static void order_acquire([[maybe_unused]] void* token) {
#ifdef EMULATED_UNDER_TSAN
    __tsan_acquire(token);
#endif
  }
  void order_of_block_begins() { order_release(&begin_token_); }
  void order_of_block_ends() {
    order_acquire(&end_token_);
    for (const auto& fiber : fibers_)
      if (fiber) fiber->is_idle = true;
  }

  std::mutex mutex_;
  std::size_t launches_ = 0;
  std::map<const void*, std::size_t> allowed_shared_;
  Order order_ = Order::kForwards;
  const char* kernel_ = "";
  const std::function<void()>* body_ = nullptr;
  Place place_;
  std::byte* shared_ = nullptr;
  std::size_t threads_count_ = 0, current_ = 0, next_ = 0, barriers_ = 0;
  int vote_ = 0;
  std::array<Thread, kMostThreads> threads_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Context scheduler_;
  char begin_token_ = 0, end_token_ = 0;
  std::array<char, 2> barrier_tokens_{};
  std::array<std::array<char, 2>, kMostThreads / kWarp> warp_tokens_{};
#ifdef EMULATED_UNDER_ASAN
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
#endif
#ifdef EMULATED_UNDER_TSAN
  void* scheduler_tsan_ = nullptr;
#endif
};

Multiprocessor& multiprocessor() {
  static auto* const kOne = new Multiprocessor;  // its stacks are never destroyed
  return *kOne;
}

void Multiprocessor::begin_fiber() {
  Multiprocessor& all = multiprocessor();
  all.run_threads_on(*all.fibers_[static_cast<std::size_t>(all.threads_[all.current_].fiber)]);
}

}  // namespace

const Place& place() { return multiprocessor().place(); }
int lane() { return multiprocessor().lane(); }
std::byte* dynamic_shared() { return multiprocessor().shared(); }
int barrier(int predicate) { return multiprocessor().barrier(predicate); }
std::uint64_t exchange(unsigned mask, std::uint64_t value, int lane_to_read) {
  return multiprocessor().exchange(mask, value, lane_to_read);
}
void warp_barrier() { multiprocessor().warp_barrier(); }

bool allow_shared(const void* kernel, std::size_t bytes) { return multiprocessor().allow_shared(kernel, bytes); }

// The limits of every architecture since sm_80; of shared memory, that of sm_86.
bool is_valid(const void* kernel, Dim3 grid, Dim3 block, std::size_t shared_bytes) {
  return grid.count() > 0 && grid.x < 1U << 31 && grid.y < 65536 && grid.z < 65536 && block.count() > 0 &&
         block.count() <= kMostThreads && block.z <= 64 && shared_bytes <= multiprocessor().allowed_shared(kernel);
}

void launch(Dim3 grid, Dim3 block, std::size_t shared_bytes, const char* kernel, const std::function<void()>& body) {
  multiprocessor().run(grid, block, shared_bytes, kernel, body);
}

std::size_t launches() { return multiprocessor().launches(); }
void set_order(Order order) { multiprocessor().set_order(order); }

}  // namespace emulated_cuda
