#include "bench/lib/collective_kind.h"

#include <algorithm>
#include <array>

#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

double no_wire(double) { return 0; }
double whole(double) { return 1; }
double all_but_own(double ranks) { return (ranks - 1) / ranks; }
double twice_all_but_own(double ranks) { return 2 * (ranks - 1) / ranks; }

CallOptions options_of(const Call& call) { return {.device = call.device, .factor = call.factor}; }

// The odd rank sends back the message that it has received.
void ping_pong(ProcessGroup& group, const Call& call) {
  const int rank = group.rank(), partner = rank ^ 1;
  if (partner >= group.world_size()) return;
  if (rank < partner) group.send(call.send, call.count, call.dtype, partner, 0, options_of(call));
  group.recv(call.receive, call.count, call.dtype, partner, 0, options_of(call));
  if (rank > partner) group.send(call.receive, call.count, call.dtype, partner, 0, options_of(call));
}

constexpr std::array kCollectives = {
    CollectiveKind{
        .name = "all_reduce",
        .sends = Parts::kOne,
        .receives = Parts::kOne,
        .reduces = true,
        .same_on_all = true,
        .bus_factor = twice_all_but_own,
        .run = [](ProcessGroup& g,
                  const Call& c) { g.all_reduce(c.send, c.receive, c.count, c.dtype, c.op, options_of(c)); }},
    CollectiveKind{
        .name = "reduce",
        .sends = Parts::kOne,
        .receives = Parts::kOne,
        .reduces = true,
        .has_root = true,
        .only_root_receives = true,
        .bus_factor = whole,
        .run = [](ProcessGroup& g,
                  const Call& c) { g.reduce(c.send, c.receive, c.count, c.dtype, c.op, c.root, options_of(c)); }},
    CollectiveKind{
        .name = "broadcast",
        .sends = Parts::kOne,
        .receives = Parts::kOne,
        .has_root = true,
        .only_root_sends = true,
        .same_on_all = true,
        .always_in_place = true,
        .bus_factor = whole,
        .run = [](ProcessGroup& g, const Call& c) { g.broadcast(c.receive, c.count, c.dtype, c.root, options_of(c)); }},
    CollectiveKind{.name = "all_gather",
                   .sends = Parts::kOne,
                   .receives = Parts::kAll,
                   .same_on_all = true,
                   .bus_factor = all_but_own,
                   .run = [](ProcessGroup& g,
                             const Call& c) { g.all_gather(c.send, c.receive, c.count, c.dtype, options_of(c)); }},
    CollectiveKind{.name = "gather",
                   .sends = Parts::kOne,
                   .receives = Parts::kAll,
                   .has_root = true,
                   .only_root_receives = true,
                   .bus_factor = all_but_own,
                   .run = [](ProcessGroup& g,
                             const Call& c) { g.gather(c.send, c.receive, c.count, c.dtype, c.root, options_of(c)); }},
    CollectiveKind{.name = "scatter",
                   .sends = Parts::kAll,
                   .receives = Parts::kOne,
                   .has_root = true,
                   .only_root_sends = true,
                   .bus_factor = all_but_own,
                   .run = [](ProcessGroup& g,
                             const Call& c) { g.scatter(c.send, c.receive, c.count, c.dtype, c.root, options_of(c)); }},
    CollectiveKind{
        .name = "reduce_scatter",
        .sends = Parts::kAll,
        .receives = Parts::kOne,
        .reduces = true,
        .bus_factor = all_but_own,
        .run = [](ProcessGroup& g,
                  const Call& c) { g.reduce_scatter(c.send, c.receive, c.count, c.dtype, c.op, options_of(c)); }},
    CollectiveKind{.name = "all_to_all",
                   .sends = Parts::kAll,
                   .receives = Parts::kAll,
                   .bus_factor = all_but_own,
                   .run = [](ProcessGroup& g,
                             const Call& c) { g.all_to_all(c.send, c.receive, c.count, c.dtype, options_of(c)); }},
    CollectiveKind{.name = "sendrecv",
                   .sends = Parts::kOne,
                   .receives = Parts::kOne,
                   .pairs = true,
                   .bus_factor = whole,
                   .run = ping_pong},
    CollectiveKind{.name = "barrier",
                   .bus_factor = no_wire,
                   .run = [](ProcessGroup& g, const Call& c) { g.barrier(options_of(c)); }},
};

int parts(Parts parts, int ranks) { return parts == Parts::kAll ? ranks : parts == Parts::kOne ? 1 : 0; }

}  // namespace

std::string collective_names() {
  std::string names;
  for (const CollectiveKind& kind : kCollectives) names += (names.empty() ? "" : ", ") + std::string(kind.name);
  return names;
}

const CollectiveKind& find_collective(std::string_view name) {
  for (const CollectiveKind& kind : kCollectives)
    if (kind.name == name) return kind;
  throw InvalidArgument("--op: '{}' is not a collective; expected one of {}", name, collective_names());
}

bool CollectiveKind::sends_from(int rank, int ranks, int root) const {
  if (pairs) return rank % 2 == 0 && rank + 1 < ranks;
  return moves_data() && (!only_root_sends || rank == root);
}

bool CollectiveKind::receives_at(int rank, int ranks, int root) const {
  if (pairs) return (rank ^ 1) < ranks;
  return moves_data() && (!only_root_receives || rank == root);
}

MessageLayout layout_of(const CollectiveKind& kind, std::size_t bytes, DType dtype, int ranks, bool in_place) {
  MessageLayout layout{
      .ranks = ranks, .send_parts = parts(kind.sends, ranks), .receive_parts = parts(kind.receives, ranks)};
  layout.in_place = in_place || kind.always_in_place;
  const auto most = static_cast<std::size_t>(std::max(layout.send_parts, layout.receive_parts));
  if (most == 0) return layout;
  layout.count = std::max<std::size_t>(1, bytes / most / size_of(dtype));
  layout.part_bytes = layout.count * size_of(dtype);
  return layout;
}

Memory ends_of(const MessageLayout& layout, const Memory& memory, int rank) {
  if (!layout.in_place || layout.send_parts == layout.receive_parts)
    return {layout.in_place ? memory.receive : memory.send, memory.receive};
  std::byte* part = memory.receive + static_cast<std::size_t>(rank) * layout.part_bytes;
  return layout.send_parts < layout.receive_parts ? Memory{part, memory.receive} : Memory{memory.receive, part};
}

}  // namespace lockstep::bench
