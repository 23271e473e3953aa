// Times one collective at one size: every round fills the buffers, waits at a barrier, and times the call on each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bench/lib/bound.h"
#include "bench/lib/collective_kind.h"
#include "bench/lib/test_data.h"

namespace lockstep::bench {

struct MeasureOptions {
  const CollectiveKind* kind = nullptr;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  bool in_place = true;
  bool plain = false;  // ordinary memory instead of registered
  DeviceKind device = DeviceKind::kCpu;
  bool check = false;      // check every element of the last round's results
  std::size_t rounds = 0;  // 0: depends on the size
};

struct Row {
  MessageLayout layout;
  std::size_t rounds = 0;
  // Microseconds. A round's time is the longest time of any rank from its entry into the call to its return (sendrecv:
  // half of that).
  double p50 = 0, p90 = 0, p99 = 0;
  double spread = 0;  // (p90 - p10) / p50
  std::optional<double>
      skew;  // median of (last rank's entry - first rank's); null: ranks on several machines have different clocks
  std::optional<double> transfer;  // median of (last return - last entry); null: the same
  std::optional<double> bound;     // median of bound.h's loop; null: there is no bound
  std::int64_t wrong = 0;          // number of elements, over all ranks
  std::optional<bool>
      same_bits;  // in repeats with the same input, and, if all ranks receive the same, on all ranks; null: no data
};

// The number of rounds for a message of `bytes`: chosen so that each size takes about the same time.
std::size_t rounds_for(std::size_t bytes);

class Measurement {
 public:
  // Collective, like measure(): allocates memory for messages of up to `largest` bytes.
  Measurement(std::shared_ptr<ProcessGroup> group, const MeasureOptions& options, std::size_t largest);
  // All ranks get the same row.
  Row measure(std::size_t bytes);

  Memory memory() const { return memory_; }

 private:
  struct Rounds {
    std::vector<std::int64_t> entries, returns;  // this rank's clock, ns
    std::vector<std::int64_t> bounds;            // ns
  };
  std::optional<Bound> bound_of(const MessageLayout& layout, const Call& call) const;
  Rounds run_rounds(const TestData& data, const Call& call, Bound* bound, std::size_t rounds);
  void summarize(const Rounds& mine, Row& row);
  void take_on_device();
  void to_device();
  void from_device();
  std::vector<std::int64_t> from_all(const std::vector<std::int64_t>& mine);  // ranks x rounds
  std::optional<bool> gives_same_bits(const TestData& data, const Call& call);

  std::shared_ptr<ProcessGroup> group_;
  MeasureOptions options_;
  std::vector<Buffer> registered_;  // send, receive; in place: only receive
  std::vector<std::byte> plain_send_, plain_receive_;
  Memory memory_;              // where data is filled in and checked: on the host
  Memory called_memory_;       // memory of the calls: the same, or the device's
  std::vector<Memory> peers_;  // by rank, if a bound can be measured; else empty
  bool clocks_agree_;
};

}  // namespace lockstep::bench
