// The share of each rank in the mean of a pass, by the weights that the ranks set and by which ranks still have data in
// join(). The ranks exchange a status of 16 bytes each, gathered when backward begins, so that it is in flight while
// the first bucket fills. Before an epoch they compare their numbers of steps.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/reduce/pass_options.h"

namespace lockstep {

class Shares {
 public:
  // `wrapper` names the wrapper in messages. The group must outlive it.
  Shares(ProcessGroup& group, const char* wrapper);
  ~Shares();
  Shares(const Shares&) = delete;
  Shares& operator=(const Shares&) = delete;

  // The next action of a rank in join(). A rank without data announces kNothing and follows the others. kThrow: the
  // error that all ranks got in the last pass ends join().
  enum class Act : std::uint8_t { kNothing, kBuffers, kPass, kWeightedPass, kThrow };

  void set_weight(double weight) { weight_ = weight; }  // of the next pass, in which it is checked on all ranks
  bool has_weight() const { return weight_.has_value(); }

  // Collective.
  void begin_join(const JoinOptions& options);
  void end_join() { join_.reset(); }
  bool is_joining() const { return join_.has_value(); }
  // Collective, in join(). Announces this rank's action and returns that of the ranks with data, or kNothing if none
  // has data.
  Act announce(Act own, std::uint64_t step);
  int first_with_data() const { return first_with_data_; }  // of the last exchange in which a rank had data
  bool was_uneven() const { return was_uneven_; }  // whether a rank of this join() had data when another one had none
  // Returns whether the exchange ended this join() by an error that every rank throws itself. The group then stays
  // usable.
  bool has_ended_join() const { return has_ended_join_; }

  // begin_epoch() of the wrapper. Collective. Throws MismatchError with all numbers on all ranks if they will
  // run different numbers of steps. Throws InvalidArgument in join(), where numbers differ and ranks make no other
  // calls.
  void begin_epoch(std::int64_t steps) const;

  // Starts this pass's exchange, if it needs one. `step` is for messages.
  void begin_pass(std::uint64_t step);
  // Returns the factor for this rank's gradients; blocks until the pass's exchange is complete. Throws on all ranks:
  // InvalidArgument for an invalid weight, Error if join() requires it, MismatchError if ranks with data do different
  // things.
  float factor();

 private:
  struct Status {
    double act, weight;
  };
  void exchange(Act act, std::uint64_t step);
  Act read();
  void check_weights() const;

  ProcessGroup& group_;
  const char* const wrapper_;
  std::optional<double> weight_;
  std::optional<JoinOptions> join_;
  Status own_{};
  std::vector<Status> all_;
  Work work_;
  bool exchanging_ = false, has_data_ = true, was_uneven_ = false, has_ended_join_ = false;
  std::uint64_t step_ = 0;
  int first_with_data_ = 0;
};

}  // namespace lockstep
