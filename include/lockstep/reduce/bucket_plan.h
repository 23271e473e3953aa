// Which gradient lies in which bucket, and where. A pure function: the same on all ranks because its input is.
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

// All that the reducer knows of a parameter.
struct GradientInfo {
  std::string name;
  std::size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  DeviceKind device = DeviceKind::kCpu;
  bool delayed = false;  // comes late out of turn: into the last buckets, with others of the kind
  Shape shape = {};      // of `count` elements, as comm hooks see it; a scalar's: one dimension

  std::size_t bytes() const { return count * size_of(dtype); }
};

// Bytes: of the first bucket, the second, ...; the last value holds for all further ones. A small first one lets the
// first all-reduce start early.
using BucketCaps = std::vector<std::size_t>;

// A gradient's place in its bucket.
struct Slot {
  std::size_t gradient = 0;  // index into the list of gradients
  std::size_t offset = 0;    // bytes from the bucket's begin, a multiple of 64
  bool operator==(const Slot&) const = default;
};

struct BucketLayout {
  std::vector<Slot> slots;  // in the order in which the gradients are expected to become ready
  std::size_t bytes = 0;    // 64-byte slots, padding included; the padding is zero and is reduced along
  DType dtype = DType::kFloat32;
  DeviceKind device = DeviceKind::kCpu;
  bool operator==(const BucketLayout&) const = default;
};

// Walks the gradients in reverse order of registration (backward's order, roughly), appends each to the open bucket of
// its dtype and device, and closes that bucket on reaching its cap, so that it may exceed the cap by its last gradient.
// Every dtype and device counts its own buckets; delayed gradients are in others, of the same caps. Buckets are
// numbered in the order of their last gradient, those of delayed ones behind all others: the order in which they are
// reduced. InvalidArgument: no cap, or one of 0.
std::vector<BucketLayout> plan_buckets(std::span<const GradientInfo> gradients, const BucketCaps& caps);

// The same in the order in which gradients are known to become ready: `order` has each index once, InvalidArgument
// otherwise. The slots of all buckets, one bucket after the other, are an order that gives the same buckets.
std::vector<BucketLayout> plan_buckets(std::span<const GradientInfo> gradients, const BucketCaps& caps,
                                       std::span<const std::size_t> order);

// Of a bucket that is divided among ranks: the bytes of one slice, whole slots. The last slices may reach beyond the
// bucket's bytes.
std::size_t slice_bytes(const BucketLayout& bucket, int ranks);

}  // namespace lockstep
#pragma GCC visibility pop
