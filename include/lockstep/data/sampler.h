// Which samples a rank sees, in which order: a pure function of (seed, epoch, place).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/place.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

enum class Remainder {
  kPad,   // repeat the head, so that all ranks have equally many (training)
  kDrop,  // leave out the last size % world_size
  kExact  // some ranks have one sample less: each counts exactly once (evaluation)
};

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::kPad;
};

// A sampler's place in the data, for a checkpoint.
struct SamplerState {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  // samples of this epoch already trained on, over all ranks
};

// One global permutation from (seed, epoch), the same on all ranks; rank r takes positions r, r + n, r + 2n, ...
class DistributedSampler {
 public:
  // Throws InvalidArgument for an empty set.
  DistributedSampler(std::int64_t size, const Place& place, const DistributedSamplerOptions& options = {});

  void set_epoch(std::int64_t epoch);  // and back to the epoch's begin
  std::int64_t epoch() const { return state_.epoch; }
  std::int64_t set_size() const { return size_; }  // what it was made for
  std::int64_t size() const;                       // samples of this rank in an epoch
  std::int64_t total() const;                      // samples of all ranks in an epoch
  std::vector<std::int64_t> indices() const;       // this rank's, from the present position on
  const Place& place() const { return place_; }

  // Called by the training loop after each global step; what state() then gives resumes behind that step.
  void advance(std::int64_t samples_over_all_ranks) { state_.consumed += samples_over_all_ranks; }
  SamplerState state() const { return state_; }
  void restore(const SamplerState& state);

 private:
  std::int64_t size_;
  Place place_;
  DistributedSamplerOptions options_;
  SamplerState state_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
