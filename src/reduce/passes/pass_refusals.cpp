#include "src/reduce/passes/pass_refusals.h"

#include <fmt/format.h>

#include <cmath>

namespace lockstep {

namespace {

constexpr double kMiB = 1 << 20, kLargestCap = 1 << 20;  // in MiB: one TiB

}  // namespace

std::string refused_caps(std::span<const double> bucket_cap_mb) {
  if (bucket_cap_mb.empty()) return "bucket_cap_mb is empty: set a cap in MiB, {25}, or one for each bucket, {1, 25}";
  for (const double cap : bucket_cap_mb)
    if (!(cap > 0) || !(cap <= kLargestCap))
      return fmt::format("bucket_cap_mb has {}, expected MiB above 0 and at most {}", cap, kLargestCap);
  return "";
}

BucketCaps caps_in_bytes(std::span<const double> bucket_cap_mb) {
  BucketCaps caps;
  for (const double cap : bucket_cap_mb) caps.push_back(static_cast<std::size_t>(std::ceil(cap * kMiB)));
  return caps;
}

std::string refused_policies(bool find_unused_parameters, bool static_graph, const CommHook& hook) {
  if (find_unused_parameters && static_graph)
    return "find_unused_parameters lets the unused parameters differ from step to step, static_graph says that they do "
           "not: set only one of them";
  if (find_unused_parameters && hook && !hook->averages())
    return fmt::format(
        "find_unused_parameters gives a parameter that a rank did not use the others' average, but the comm_hook {} "
        "leaves each rank its own gradients: set only one of them",
        hook->describe());
  return "";
}

std::string refused_join(bool static_graph, const CommHook& hook) {
  if (static_graph)
    return "not with static_graph, where each rank's first step decides what later steps use, because a rank without "
           "data has no first step: set .find_unused_parameters instead";
  if (hook && !hook->averages())
    return fmt::format(
        "not with the comm_hook {}, which leaves each rank its own gradients, because a rank without data has none",
        hook->describe());
  return "";
}

}  // namespace lockstep
