// Which samples a rank sees, in which order: a pure function of (seed, epoch, place).
//
// A sampler has one order of an epoch for all ranks. Of what is left of it, behind `consumed`, rank r of n takes
// positions r, r + n, r + 2n, ... A position is a sample, or a batch where the sampler makes these
// (LengthBucketSampler). As the order does not depend on n, any number of ranks goes on where another one stopped: with
// just those samples that no rank had.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/place.h"
#include "lockstep/data/sampler_state.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

enum class Remainder {
  kPad,   // repeat the head, so that all ranks have equally many (training)
  kDrop,  // leave out the last size % world_size; on resuming, of what is left
  kExact  // some ranks have one sample less: each counts exactly once (evaluation)
};
const char* name_of(Remainder remainder);  // "pad", "drop", "exact"

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::kPad;
  // 0: the whole set is shuffled. Else as tf.data does with a buffer of so many samples: each is drawn at random from
  // those that wait, whose place the next of the set takes, so that none comes more than shuffle_buffer - 1 places
  // early.
  std::int64_t shuffle_buffer = 0;
};

class Dataset;
// The first 64 bits of a SHA-256 of the set's size and of 16 of its samples, the first and the last among them, as
// epoch 0 sees them; of images as they are stored. It calls get() for these, and throws what that throws.
std::string fingerprint_of(const Dataset& set);

// Samples in their order.
struct SampleOrder {
  std::vector<std::int64_t> indices;
  std::vector<std::int64_t> batch_ends =
      {};  // of a sampler that makes batches: where each ends in `indices`; else empty
};

// What a DataLoader and a checkpoint need of a sampler; one of your own says the order of an epoch. One thread at a
// time.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // And back to the epoch's begin. Without it every pass has the order of epoch 0: a loader warns once, where epochs
  // differ.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return state_.epoch; }
  std::int64_t set_size() const { return state_.set_size; }  // what it was made for
  const Place& place() const { return place_; }
  bool makes_batches() const { return makes_batches_; }

  // Samples, or batches of a sampler that makes these: of an epoch from its begin, and from the present position on.
  std::int64_t size() const;       // of this rank
  std::int64_t total() const;      // of all ranks
  std::int64_t remaining() const;  // of this rank, from here on
  // This rank's, from the present position on.
  SampleOrder order() const;
  std::vector<std::int64_t> indices() const { return order().indices; }

  // Called by the training loop after each global step, with samples, or batches; what state() then gives resumes
  // behind that step. A DataLoader counts by itself: its state() needs no advance().
  void advance(std::int64_t over_all_ranks) { state_.consumed += over_all_ranks; }
  SamplerState state() const;
  // Goes on behind what `state` says was consumed, with its seed; the number of ranks may be another. Throws
  // InvalidArgument, with what differs, for the state of another data set's size, of another fingerprint, of other
  // options (Remainder, weights, lengths, ...), of another kind of sampler, or of a position that the epoch does not
  // have. check() only throws.
  void restore(const SamplerState& state);
  void check(const SamplerState& state) const;

 protected:
  // `kind` begins messages; `options` is text that differs wherever two samplers of a seed have another order:
  // "shuffle, size 3". Throws InvalidArgument for a rank that the world does not have, an empty set, or one of 2^32
  // samples and more.
  Sampler(const char* kind, std::int64_t set_size, const Place& place, std::uint64_t seed, Remainder remainder,
          const std::string& options, bool makes_batches = false);
  // For constructors: with it, states of other sets of the same size are refused.
  void set_fingerprint(std::string fingerprint) { state_.fingerprint = std::move(fingerprint); }
  // For constructors: throws InvalidArgument when dropping the remainder leaves a rank without anything.
  void check_not_all_dropped() const;

 private:
  friend class DataLoader;  // which notices set_epoch() and restore()

  // The epoch's order for all ranks, the same on all; never empty.
  virtual SampleOrder whole_order(std::uint64_t seed, std::int64_t epoch) const = 0;
  virtual std::int64_t whole_size(std::uint64_t seed, std::int64_t epoch) const = 0;  // its samples, or batches

  std::int64_t whole_size() const { return whole_size(state_.seed, state_.epoch); }
  // Of a pass that begins behind `consumed` of `whole` positions: where it ends, and how many are this rank's.
  std::int64_t end_of_pass(std::int64_t consumed, std::int64_t whole) const;
  std::int64_t size_of_pass(std::int64_t consumed) const;
  SamplerState state_at(std::int64_t consumed) const;

  const char* kind_;
  Place place_;
  Remainder remainder_;
  bool makes_batches_;
  SamplerState state_;
  // Of a loader that begins a pass, and of one whose pass has come to its end.
  void begin_pass() const;
  void end_pass() const { was_passed_ = true; }

  std::uint64_t jumps_ = 0;                               // how often the position was set, not advanced
  mutable bool was_passed_ = false, has_warned_ = false;  // a whole pass since then; of a second one
};

// One permutation of the set from (seed, epoch), or its own order.
class DistributedSampler : public Sampler {
 public:
  // Throws InvalidArgument for a rank that the world does not have, an empty set, a negative shuffle_buffer, or where
  // dropping the remainder leaves nothing.
  DistributedSampler(std::int64_t size, const Place& place, const DistributedSamplerOptions& options = {});
  // Of this set, which is looked at here alone: the sampler's state has its fingerprint_of(), and fits no other set.
  DistributedSampler(const Dataset& set, const Place& place, const DistributedSamplerOptions& options = {});

 private:
  SampleOrder whole_order(std::uint64_t seed, std::int64_t epoch) const override;
  std::int64_t whole_size(std::uint64_t, std::int64_t) const override { return set_size(); }

  bool shuffle_;
  std::int64_t buffer_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
