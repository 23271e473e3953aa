// The buckets in the form that comm hooks receive.
#pragma once

#include <span>
#include <vector>

#include "lockstep/reduce/comm_hook.h"

namespace lockstep {

struct BucketViews {
  std::vector<std::vector<GradSlot>> slots;  // by bucket
  std::vector<GradBucket> buckets;           // without memory
};

// The views refer to the gradients, which must not move.
BucketViews views_of(const std::vector<GradientInfo>& gradients, const std::vector<BucketLayout>& layouts);

// Reduces a bucket when there is no hook.
Work average(ProcessGroup& group, const GradBucket& bucket);

// Collective, with all buckets reduced. Throws MismatchError on all ranks if one rank's bits differ. Blocks until the
// device is done.
void check_is_reduced_alike(ProcessGroup& group, std::span<const GradBucket> buckets);

}  // namespace lockstep
