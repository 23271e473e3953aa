// Averages a 16-bit bucket with sums in float32, for a backend that would add in 16 bits and round at every rank
// (NCCL).
//
// Each rank owns a slice of the bucket. An all_to_all brings every rank's slices to their owners, which add them in
// float32 in rank order, divide, and round once. An all_gather then distributes the averages: 2 (n - 1) / n of the
// bucket's bytes, as in an all-reduce.
#pragma once

#include "src/reduce/hooks/hook_parts.h"

namespace lockstep {

class WideAverage {
 public:
  // Returns false if the plain average gives the same result: a sum of two bfloat16 is rounded only once. (A sum of two
  // float16 may overflow; bfloat16 has float32's range.)
  static bool is_for(const ProcessGroup& group, const GradBucket& bucket);
  // `slice`: elements of a rank's slice; the buffer has that many for each rank.
  Work start(ProcessGroup& group, const GradBucket& bucket, std::size_t slice);

 private:
  struct Job {
    const KernelTable* kernels = nullptr;
    DType dtype = DType::kBFloat16;
    std::byte* own = nullptr;  // this rank's slice
    std::int64_t slice = 0, ranks = 1;
    Buffer received, sum;

    void average_slice(Stream& stream) const;
  };
  hooks::Jobs<Job> jobs_;
};

}  // namespace lockstep
