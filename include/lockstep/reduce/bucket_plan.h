// The assignment of gradients to buckets. A pure function: all ranks get the same plan because they have the same
// input.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/shape.h"

#pragma GCC visibility push(default)
namespace lockstep {

// A parameter's description for the reducer.
struct GradientInfo {
  std::string name;
  std::size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  DeviceKind device = DeviceKind::kCpu;
  bool delayed = false;  // ready late and out of order: goes into the last buckets, with other delayed ones
  Shape shape = {};      // has `count` elements; comm hooks see it; a scalar has one dimension

  std::size_t bytes() const { return count * size_of(dtype); }
};

// Caps in bytes of the first bucket, the second, ...; the last value applies to all remaining ones. A small first
// bucket lets the first all-reduce start early.
using BucketCaps = std::vector<std::size_t>;

// A gradient's place in its bucket.
struct Slot {
  std::size_t gradient = 0;  // index into the list of gradients
  std::size_t offset = 0;    // bytes from the start of the bucket, a multiple of 64
  bool operator==(const Slot&) const = default;
};

struct BucketLayout {
  std::vector<Slot> slots;  // in the order in which the gradients are expected to become ready
  std::size_t bytes = 0;    // 64-byte slots including padding, which is zero and is reduced too
  DType dtype = DType::kFloat32;
  DeviceKind device = DeviceKind::kCpu;
  bool operator==(const BucketLayout&) const = default;
};

// Walks the gradients in reverse order of registration (roughly backward's order), appends each to the open bucket of
// its dtype and device, and closes that bucket when it reaches its cap. A bucket may therefore exceed its cap by its
// last gradient. Each combination of dtype and device has its own buckets; delayed gradients go into separate ones with
// the same caps. Buckets are numbered, and reduced, in the order of their last gradient, with those of delayed
// gradients at the end. Throws InvalidArgument without caps or for a cap of 0.
std::vector<BucketLayout> plan_buckets(std::span<const GradientInfo> gradients, const BucketCaps& caps);

// The same, in a known order in which gradients become ready. `order` must have each index once (else InvalidArgument).
// The concatenated slots of a plan's buckets are an order that gives the same plan.
std::vector<BucketLayout> plan_buckets(std::span<const GradientInfo> gradients, const BucketCaps& caps,
                                       std::span<const std::size_t> order);

// For a bucket that is divided among ranks: the bytes of one slice, a multiple of the slot size. The last slices may
// extend beyond the bucket.
std::size_t slice_bytes(const BucketLayout& bucket, int ranks);

}  // namespace lockstep
#pragma GCC visibility pop
