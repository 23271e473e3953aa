// Bucket sizes for models of a few bytes: DistributedDataParallelOptions counts in MiB.
#pragma once

namespace lockstep::testing {

constexpr double in_mib(int bytes) { return bytes / double{1 << 20}; }

}  // namespace lockstep::testing
