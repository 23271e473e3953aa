// How many threads this process's CPU kernels compute with, and work that they split among these. No result depends on
// the number: what is computed in parts is cut by its shape alone, and parts of a sum are added in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep {

// The cores that this process may run on, by number. Throws Error when the system does not say.
std::vector<int> affinity();

// OMP_NUM_THREADS (a number, or a list of which the first counts), else what was set, else one a core of affinity().
int compute_threads();
void set_compute_threads(int threads);

// While one lives, this thread computes with a `count`-th of the threads above, and in_parallel() has helpers of its
// own: for `count` threads that each drive a device of this process. Shares of the same number must not be at work at
// once.
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

// Calls work(0) to work(parts - 1), each once, on up to compute_threads() threads, this one among them; returns when
// all have ended, and throws the first exception of any. While another thread's work is under way this thread does its
// own alone, and so it does within a part.
void in_parallel(std::int64_t parts, const PartOfWork& work);

// Adds up what `compute(part, to)` writes, `count` floats each, in the order of the parts: total = part 0 + part 1 +
// ...
void sum_of_parts(std::int64_t parts, std::int64_t count, float* total,
                  const std::function<void(std::int64_t part, float* to)>& compute);

}  // namespace lockstep
