#include "src/autograd/engine/device_threads.h"

#include <algorithm>

#include "lockstep/autograd/autocast.h"
#include "lockstep/tensor/random.h"
#include "src/core/process/compute_threads.h"

namespace lockstep {

DeviceThreads::DeviceThreads(int count) : failures_(static_cast<std::size_t>(count)) {
  for (int number = 0; number < count; ++number) threads_.emplace_back([this, number] { serve(number); });
}

DeviceThreads::~DeviceThreads() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void DeviceThreads::run(const std::function<void(int device)>& work, const std::function<void()>& meanwhile) {
  const RandomState random = random_state();
  RandomState random_after = random;
  const SampleNumbers samples = sample_numbers();
  const DType type = AutoCast::active();
  std::unique_lock lock(mutex_);
  work_ = [&](int device) {
    set_random_state(random);
    set_sample_numbers(samples);
    const AutoCast autocast(type);
    work(device);
    if (device == 0) random_after = random_state();
  };
  std::fill(failures_.begin(), failures_.end(), nullptr);
  under_way_ = static_cast<int>(threads_.size());
  ++round_;
  has_work_.notify_all();
  std::exception_ptr own_failure;
  if (meanwhile) {
    lock.unlock();
    try {
      meanwhile();
    } catch (...) {
      own_failure = std::current_exception();
    }
    lock.lock();
  }
  has_ended_.wait(lock, [this] { return under_way_ == 0; });
  work_ = nullptr;
  set_random_state(random_after);  // all threads have drawn the same number of times
  for (const std::exception_ptr& failure : failures_)
    if (failure) std::rethrow_exception(failure);
  if (own_failure) std::rethrow_exception(own_failure);
}

void DeviceThreads::serve(int number) {
  const ComputeShare share(number, static_cast<int>(failures_.size()));
  std::uint64_t done = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [&] { return over_ || round_ != done; });
    if (over_) return;
    done = round_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work_(number);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failures_[static_cast<std::size_t>(number)] = failure;
    if (--under_way_ == 0) has_ended_.notify_all();
  }
}

}  // namespace lockstep
