#include "bench/lib/bound.h"

#include <cstdint>
#include <cstring>

#include "lockstep/core/error.h"
#include "src/comm/host/reduce/reduce_kernels.h"
#include "src/comm/host/shm/registered_memory.h"

namespace lockstep::bench {

bool has_shared_parts(ProcessGroup& group) {
  const Backend& backend = group.backend();
  return group.world_size() > 1 && backend.name() == "host" && backend.transport() == "shm";
}

SharedParts::SharedParts(ProcessGroup& group, const Buffer& mine)
    : stride_(host::RegisteredMemory::stride_of(mine.bytes())) {
  first_ = mine.data() - static_cast<std::size_t>(group.rank()) * stride_;
  const auto tag_of = [](int rank) { return std::int64_t{0x10C5} << 32 | rank; };
  const std::int64_t tag = tag_of(group.rank());
  std::memcpy(mine.data(), &tag, sizeof(tag));
  group.barrier();
  for (int rank = 0; rank < group.world_size(); ++rank)
    if (std::int64_t found = 0; std::memcpy(&found, of(rank), sizeof(found)), found != tag_of(rank))
      throw Error("rank {}: registered memory does not lie as the benchmark expects: rank {}'s part is not found",
                  group.rank(), rank);
  group.barrier();
}

bool Bound::exists(const CollectiveKind& kind, const MessageLayout& layout) {
  const bool exchanges = layout.send_parts == layout.ranks && layout.receive_parts == layout.ranks;
  return kind.moves_data() && layout.ranks > 1 && !(exchanges && layout.in_place);
}

Bound::Bound(const CollectiveKind& kind, const MessageLayout& layout, const Call& call, int rank,
             std::vector<Memory> ends)
    : layout_(layout), call_(call), ends_(std::move(ends)) {
  if (kind.reduces)
    plan_reduction(kind, rank);
  else
    plan_copies(kind, rank);
}

// A rank's share is its slice of the only part, or its entire part.
void Bound::plan_reduction(const CollectiveKind& kind, int rank) {
  const bool whole_part = layout_.send_parts > 1;
  const host::Slice slice =
      whole_part ? host::Slice{0, layout_.count} : host::slice_of(layout_.count, call_.dtype, rank, layout_.ranks);
  const std::size_t offset = slice.begin * size_of(call_.dtype),
                    part = whole_part ? static_cast<std::size_t>(rank) * layout_.part_bytes : 0;
  for (int peer = 0; peer < layout_.ranks; ++peer) {
    const Memory& theirs = ends_[static_cast<std::size_t>(peer)];
    inputs_.push_back(theirs.send + part + offset);
    if (kind.same_on_all || peer == (kind.has_root ? call_.root : rank)) outputs_.push_back(theirs.receive + offset);
  }
  count_ = slice.count();
}

void Bound::plan_copies(const CollectiveKind& kind, int rank) {
  if (!kind.receives_at(rank, layout_.ranks, call_.root) || (kind.pairs && rank % 2 == 0))
    return;  // a pair: one direction only
  const auto part_of = [&](int index) { return static_cast<std::size_t>(index) * layout_.part_bytes; };
  for (int part = 0; part < layout_.receive_parts; ++part) {
    const int sender = kind.pairs ? rank - 1 : layout_.receive_parts > 1 ? part : call_.root;
    const std::byte* from = ends_[static_cast<std::size_t>(sender)].send + part_of(layout_.send_parts > 1 ? rank : 0);
    std::byte* to = ends_[static_cast<std::size_t>(rank)].receive + part_of(part);
    if (from != to) copies_.push_back({to, from});
  }
}

void Bound::run() {
  for (const Copy& copy : copies_) std::memcpy(copy.to, copy.from, layout_.part_bytes);
  if (!inputs_.empty())
    host::reduce({call_.dtype, call_.op, layout_.ranks, static_cast<int>(outputs_.size()), inputs_.data(),
                  outputs_.data(), count_});
}

}  // namespace lockstep::bench
