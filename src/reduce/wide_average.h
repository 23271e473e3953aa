// The average of a 16-bit bucket, summed in float32 where the backend would add in 16 bits and round at every rank
// (NCCL).
//
// Each rank owns a slice of the bucket. One all_to_all takes every rank's slices to their owners, who add them in
// float32, in rank order, divide and round once; one all_gather takes the averages to all: 2 (n - 1) / n of the
// bucket's bytes, as an all-reduce.
#pragma once

#include "src/reduce/hooks/hook_parts.h"

namespace lockstep {

class WideAverage {
 public:
  // False where the plain average gives the same: a sum of two is rounded once. That of two float16 may be infinite,
  // bfloat16's range is float32's.
  static bool is_for(const ProcessGroup& group, const GradBucket& bucket);
  // `slice`: elements of a rank's slice; the buffer has as many for each rank.
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
