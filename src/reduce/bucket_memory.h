// Memory for buckets of gradients, or of weights with the same layout.
#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/buffer.h"
#include "lockstep/reduce/bucket_plan.h"

namespace lockstep {

// Registered memory for each bucket: slice_bytes() for every rank, zeroed. Collective. On a GPU all buckets are windows
// of one allocation, because NCCL before 2.26 rounds each up to as much as 512 MiB; it lives as long as one of them. In
// host memory each bucket has its own, so that it can be freed before the others.
std::vector<Buffer> allocate_buckets(ProcessGroup& group, const std::vector<BucketLayout>& layouts);

}  // namespace lockstep
