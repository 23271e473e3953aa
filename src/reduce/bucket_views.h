// Buckets as comm hooks see them.
#pragma once

#include <span>
#include <vector>

#include "lockstep/reduce/comm_hook.h"

namespace lockstep {

struct BucketViews {
  std::vector<std::vector<GradSlot>> slots;  // by bucket
  std::vector<GradBucket> buckets;           // without memory
};

// The gradients must stay where they are.
BucketViews views_of(const std::vector<GradientInfo>& gradients, const std::vector<BucketLayout>& layouts);

// What a bucket is reduced by where there is no hook.
Work average(ProcessGroup& group, const GradBucket& bucket);

// Collective, all buckets reduced: MismatchError on all ranks where one has other bits than the others. Waits for the
// device.
void check_is_reduced_alike(ProcessGroup& group, std::span<const GradBucket> buckets);

}  // namespace lockstep
