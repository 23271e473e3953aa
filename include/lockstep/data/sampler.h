// Samplers decide which samples a rank sees and in which order: a pure function of (seed, epoch, place).
//
// A sampler has one order of an epoch for all ranks. Of the positions that remain after `consumed`, rank r of n takes
// r, r + n, r + 2n, ... A position is one sample, or one batch for a sampler that makes batches (LengthBucketSampler).
// The order does not depend on n, so a job with any number of ranks can continue where another one stopped, with
// exactly the samples that no rank had.
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
  kPad,   // repeat the first positions so that all ranks have equally many (training)
  kDrop,  // skip the last size % world_size; on resuming, of the remaining ones
  kExact  // some ranks have one less; each sample counts exactly once (evaluation)
};
const char* name_of(Remainder remainder);  // "pad", "drop", "exact"

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  Remainder remainder = Remainder::kPad;
  // 0: shuffle the entire set. Else shuffle as tf.data does with a buffer of this many samples: each is drawn at random
  // from the buffer, and the set's next sample takes its place. No sample comes more than shuffle_buffer - 1 positions
  // early.
  std::int64_t shuffle_buffer = 0;
};

class Dataset;
// Returns the first 64 bits of a SHA-256 of the set's size and 16 of its samples, including the first and the last, as
// epoch 0 sees them (images as they are stored). Calls get() for them and passes its exceptions on.
std::string fingerprint_of(const Dataset& set);

// Samples in order.
struct SampleOrder {
  std::vector<std::int64_t> indices;
  // Where each batch ends in `indices`; empty unless the sampler makes batches.
  std::vector<std::int64_t> batch_ends = {};
};

// The interface that DataLoader and checkpoints use. Derive from it and define the order of an epoch to write a
// sampler. Not thread-safe.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Moves to the start of an epoch. Without it every pass has the order of epoch 0; a loader warns once if epochs would
  // differ.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return state_.epoch; }
  std::int64_t set_size() const { return state_.set_size; }  // the size that it was made for
  const Place& place() const { return place_; }
  bool makes_batches() const { return makes_batches_; }

  // Numbers of samples, or of batches for a sampler that makes batches.
  std::int64_t size() const;       // this rank's in the epoch
  std::int64_t total() const;      // all ranks' in the epoch
  std::int64_t remaining() const;  // this rank's from the present position on
  // This rank's order from the present position on.
  SampleOrder order() const;
  std::vector<std::int64_t> indices() const { return order().indices; }

  // The training loop calls it after each global step with the number of samples, or batches; state() then resumes
  // after that step. A DataLoader counts on its own: its state() needs no advance().
  void advance(std::int64_t over_all_ranks) { state_.consumed += over_all_ranks; }
  SamplerState state() const;
  // Continues after the consumed positions of `state`, with its seed; the number of ranks may differ. Throws
  // InvalidArgument, with the difference, when the state belongs to another data set (by size or fingerprint), to other
  // options (Remainder, weights, lengths, ...), to another kind of sampler, or to a position beyond the epoch. check()
  // throws the same and changes nothing.
  void restore(const SamplerState& state);
  void check(const SamplerState& state) const;

 protected:
  // `kind` begins messages. `options` is a text that must differ when two samplers with the same seed have different
  // orders: "shuffle, size 3". Throws InvalidArgument for a rank outside the world, an empty set, or a set of 2^32
  // samples or more.
  Sampler(const char* kind, std::int64_t set_size, const Place& place, std::uint64_t seed, Remainder remainder,
          const std::string& options, bool makes_batches = false);
  // For constructors: states of other sets are then refused even when the sizes are equal.
  void set_fingerprint(std::string fingerprint) { state_.fingerprint = std::move(fingerprint); }
  // For constructors: throws InvalidArgument when dropping the remainder leaves no samples.
  void check_not_all_dropped() const;

 private:
  friend class DataLoader;  // notices set_epoch() and restore()

  // Returns the epoch's order for all ranks, the same on every rank and never empty.
  virtual SampleOrder whole_order(std::uint64_t seed, std::int64_t epoch) const = 0;
  // Number of samples, or of batches.
  virtual std::int64_t whole_size(std::uint64_t seed, std::int64_t epoch) const = 0;

  std::int64_t whole_size() const { return whole_size(state_.seed, state_.epoch); }
  // For a pass that begins after `consumed` of `whole` positions: where it ends, and how many of them this rank has.
  std::int64_t end_of_pass(std::int64_t consumed, std::int64_t whole) const;
  std::int64_t size_of_pass(std::int64_t consumed) const;
  SamplerState state_at(std::int64_t consumed) const;

  const char* kind_;
  Place place_;
  Remainder remainder_;
  bool makes_batches_;
  SamplerState state_;
  // A loader calls these at the start and at the end of a pass.
  void begin_pass() const;
  void end_pass() const { was_passed_ = true; }

  std::uint64_t jumps_ = 0;                               // how often the position was set rather than advanced
  mutable bool was_passed_ = false, has_warned_ = false;  // a full pass was made since then; warned of a second one
};

// One random permutation of the set per (seed, epoch), or the set's own order.
class DistributedSampler : public Sampler {
 public:
  // Throws InvalidArgument for a rank outside the world, an empty set, a negative shuffle_buffer, or when dropping the
  // remainder leaves no samples.
  DistributedSampler(std::int64_t size, const Place& place, const DistributedSamplerOptions& options = {});
  // Reads the set only in this constructor, for fingerprint_of(): the sampler's state then fits no other set.
  DistributedSampler(const Dataset& set, const Place& place, const DistributedSamplerOptions& options = {});

 private:
  SampleOrder whole_order(std::uint64_t seed, std::int64_t epoch) const override;
  std::int64_t whole_size(std::uint64_t, std::int64_t) const override { return set_size(); }

  bool shuffle_;
  std::int64_t buffer_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
