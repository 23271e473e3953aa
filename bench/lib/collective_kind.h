// The collectives that the benchmark can time: the layout of their data, the arguments of the call, and the results.
//
// A part is `count` elements. A collective sends 1 or n parts (n: the ranks) and receives 1 or n. To add a collective,
// add an entry to the table of collective_kind.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

struct Call {
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  double factor = 1;  // this rank's factor in premul_sum
  DeviceKind device = DeviceKind::kCpu;
};

enum class Parts { kNone, kOne, kAll };

struct CollectiveKind {
  const char* name;
  Parts sends, receives;
  bool reduces;
  bool has_root;
  bool only_root_sends;
  bool only_root_receives;
  bool same_on_all;  // all ranks receive the same
  bool always_in_place;
  // Ranks 0 and 1, 2 and 3, ... send there and back, and the time of one direction counts; a rank without a partner
  // waits.
  bool pairs;
  // Bytes on the wires between the ranks for each byte of the message, as defined by nccl-tests: busbw = algbw * this.
  double (*bus_factor)(double ranks);
  void (*run)(ProcessGroup& group, const Call& call);

  bool moves_data() const { return sends != Parts::kNone; }
  bool sends_from(int rank, int ranks, int root) const;
  bool receives_at(int rank, int ranks, int root) const;
};

// Throws InvalidArgument that lists the names.
const CollectiveKind& find_collective(std::string_view name);
std::string collective_names();  // "all_reduce, reduce, ..."

// The layout in memory of the message of one size.
struct MessageLayout {
  int ranks = 1;
  int send_parts = 0, receive_parts = 0;
  std::size_t count = 0;  // elements of one part
  std::size_t part_bytes = 0;
  bool in_place = false;

  std::size_t send_bytes() const { return static_cast<std::size_t>(send_parts) * part_bytes; }
  std::size_t receive_bytes() const { return static_cast<std::size_t>(receive_parts) * part_bytes; }
  std::size_t message_bytes() const { return send_parts > receive_parts ? send_bytes() : receive_bytes(); }
};

// A message of `bytes`, rounded down to whole elements in each part, but at least one.
MessageLayout layout_of(const CollectiveKind& kind, std::size_t bytes, DType dtype, int ranks, bool in_place);

// Addresses in one rank's memory, in this process.
struct Memory {
  std::byte* send = nullptr;
  std::byte* receive = nullptr;
};
// The arguments of the call for a rank's memory. In place, `send` is not used: both sides begin at `receive`, and the
// smaller one is its part `rank`.
Memory ends_of(const MessageLayout& layout, const Memory& memory, int rank);

}  // namespace lockstep::bench
