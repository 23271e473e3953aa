// A thread for each of several devices that one process drives: for strategies, and for branches of a model.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep {

// The threads never wait for each other; only the caller of run() waits for all of them. So nothing hangs if one of
// them fails. Work whose parts wait for each other must stop the others itself if one fails, as model_parallel's stages
// do.
class DeviceThreads {
 public:
  explicit DeviceThreads(int count);
  ~DeviceThreads();
  DeviceThreads(const DeviceThreads&) = delete;
  DeviceThreads& operator=(const DeviceThreads&) = delete;

  // Calls work(0), ..., work(count - 1), each on its own thread, always the same one, with the caller's random state,
  // sample numbers and autocast. Returns when all have ended; the caller's random state is then that of number 0.
  // Rethrows the exception of the lowest number. Each thread computes with its share of this process's cores. The
  // caller's thread calls `meanwhile`, if it is not empty, while the others work; its exception counts if none of them
  // throws.
  void run(const std::function<void(int device)>& work, const std::function<void()>& meanwhile = {});

 private:
  void serve(int number);

  std::mutex mutex_;
  std::condition_variable has_work_, has_ended_;
  std::function<void(int)> work_;
  std::uint64_t round_ = 0;
  int under_way_ = 0;
  bool over_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep
