// The share of each rank in the mean of a pass: by the weights that the ranks set, and by who still has data in join().
// What the ranks tell each other is a card of 16 bytes each, gathered when backward begins, so that it travels while
// the first bucket fills. Before an epoch they compare their numbers of steps.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp_options.h"

namespace lockstep {

class Shares {
 public:
  explicit Shares(ProcessGroup& group);  // which must outlive it
  ~Shares();
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  // What a rank in join() is about to do; one that has no data left says kNothing, and follows the others. kThrow: let
  // the error that all ranks have come to in the last pass end join().
  enum class Act : std::uint8_t { kNothing, kBuffers, kPass, kWeightedPass, kThrow };

  void set_weight(double weight) { weight_ = weight; }  // of the next pass; checked there, on all ranks
  bool has_weight() const { return weight_.has_value(); }

  // Collective.
  void begin_join(const JoinOptions& options);
  void end_join() { join_.reset(); }
  bool is_joining() const { return join_.has_value(); }
  // In join(), collective: says what this rank does, and returns what those do that have data. kNothing: none has any
  // left.
  Act announce(Act own, std::uint64_t step);
  int first_with_data() const { return first_with_data_; }  // by the last cards that named one
  bool was_uneven() const { return was_uneven_; }  // did a rank of this join() have data when another had none?
  // Have the cards ended this join(), on all ranks, each of which throws by itself? Then the group goes on.
  bool has_ended_join() const { return has_ended_join_; }

  // DistributedDataParallel::begin_epoch(): collective. MismatchError on all ranks, with all numbers, when they do not
  // have as many steps before them. InvalidArgument in join(), where ranks have unequal numbers and make no calls but
  // the wrapper's.
  void begin_epoch(std::int64_t steps) const;

  // Starts the exchange of this pass, if there is one. `step` is for messages.
  void begin_pass(std::uint64_t step);
  // What this rank's gradients are to be multiplied with; waits for the cards of the pass. InvalidArgument on all ranks
  // for a weight that is none, Error where join() says so, MismatchError where ranks with data do different things.
  float factor();

 private:
  struct Card {
    double act, weight;
  };
  void exchange(Act act, std::uint64_t step);
  Act read();
  void check_weights() const;

  ProcessGroup& group_;
  std::optional<double> weight_;
  std::optional<JoinOptions> join_;
  Card own_{};
  std::vector<Card> cards_;
  Work work_;
  bool exchanging_ = false, has_data_ = true, was_uneven_ = false, has_ended_join_ = false;
  std::uint64_t step_ = 0;
  int first_with_data_ = 0;
};

}  // namespace lockstep
