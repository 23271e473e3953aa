// The number of threads with which this process's CPU kernels compute, and the distribution of work among them. No
// result depends on the number: how work is cut into parts depends only on its shape, and parts of a sum are added in
// their order.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep {

// The cores that this process may run on, by number. Throws Error if the system does not report them.
std::vector<int> affinity();

// OMP_NUM_THREADS (a number, or a list whose first number counts), else the number that was set, else one per core of
// affinity().
int compute_threads();
void set_compute_threads(int threads);

// While it lives, this thread computes with one `count`-th of the threads above, and in_parallel() has its own helpers:
// for `count` threads that each drive a device of this process. Shares with the same number must not compute at the
// same time.
class ComputeShare {
 public:
  ComputeShare(int number, int count);
  ~ComputeShare();
  ComputeShare(const ComputeShare&) = delete;
  ComputeShare& operator=(const ComputeShare&) = delete;

 private:
  const int number_before_, count_before_;
};
inline constexpr int kMaxComputeShares = 64;

using PartOfWork = std::function<void(std::int64_t part)>;

// Calls work(0) to work(parts - 1), each once, on up to compute_threads() threads including this one. Returns when all
// have ended, and throws the first exception of any. If another thread's work is running, or within a part, this thread
// computes everything alone.
void in_parallel(std::int64_t parts, const PartOfWork& work);

// Sums the results of `compute(part, to)`, which writes `count` floats each, in the order of the parts: total = part 0
// + part 1 + ...
void sum_of_parts(std::int64_t parts, std::int64_t count, float* total,
                  const std::function<void(std::int64_t part, float* to)>& compute);

}  // namespace lockstep
