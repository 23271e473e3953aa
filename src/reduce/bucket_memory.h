// Memory for buckets of gradients, or of weights with the same layout.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/buffer.h"
#include "lockstep/reduce/bucket_plan.h"

namespace lockstep {

// Hands out registered memory, zeroed, for one bucket after the other: slice_bytes() for every rank. In host memory
// each bucket has an allocation of its own. On a GPU buckets share allocations of up to 512 MiB, because NCCL
// before 2.26 rounds each up to as much as that; an allocation lives as long as one of its buckets. While buckets move,
// at most one allocation more exists than is needed.
class BucketMemory {
 public:
  BucketMemory(ProcessGroup& group, const std::vector<BucketLayout>& layouts) : group_(group), layouts_(layouts) {}
  Buffer next();  // of the bucket after the last call's, at first of bucket 0; collective

 private:
  std::size_t bytes_of(const BucketLayout& layout) const;
  std::size_t bytes_of_share() const;  // of the buckets on a GPU, from the next one on, that share an allocation

  ProcessGroup& group_;
  const std::vector<BucketLayout>& layouts_;
  std::size_t next_ = 0;
  Buffer shared_;  // by buckets on a GPU
  std::size_t used_ = 0;
};

}  // namespace lockstep
