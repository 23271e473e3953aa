#include "src/comm/host/machine/node_rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/core/crypto.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/host/machine/memfd_provider.h"
#include "src/comm/net/socket.h"
#include "src/comm/net/unix_connection.h"
#include "src/comm/rendezvous/group_rendezvous.h"

namespace lockstep::host {

namespace {

using Clock = std::chrono::steady_clock;

// Returns the text of the error that `attempt` throws, "" on success.
template <typename Attempt> std::string reason_of_failure(Attempt&& attempt) {
  try {
    attempt();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// The store keeps "<first>\n<second>"; the first has no line break.
std::string join_lines(const std::string& first, const std::string& second) { return first + "\n" + second; }
std::pair<std::string, std::string> split_lines(const std::string& value) {
  const std::size_t end = value.find('\n');
  if (end == std::string::npos) throw Error("backend host: the store holds '{}' where two lines are expected", value);
  return {value.substr(0, end), value.substr(end + 1)};
}

// How much longer the other ranks wait for rank 0 than rank 0 waits for them: its answer names the missing ranks.
constexpr std::chrono::milliseconds kAnswerMargin(2000);
constexpr std::chrono::milliseconds kConnectTime(5000);  // for one rank's abstract socket; after it, TCP is used
constexpr char kMissed = '!';  // marks an answer that is not a decision; the text names the missing ranks

// Rank 0's part: returns the values of all ranks, in rank order. Throws RendezvousError that names all missing ranks,
// as the others will.
std::vector<std::string> collect(const BackendContext& context, const std::string& key, const std::string& mine) {
  const Deadline deadline = Clock::now() + context.store_timeout;
  std::vector<std::string> said = {mine};
  std::vector<int> missing;
  WaitNotice notice;
  for (int rank = 1; rank < context.place.world_size; ++rank) {
    try {
      said.push_back(await_key(context, fmt::format("{}/{}", key, rank), deadline, notice, [&] {
        return fmt::format("rank {} of {}, which has registered (store key {})", rank, context.place.world_size, key);
      }));
    } catch (const TimeoutError&) {
      missing.push_back(rank);
    }
  }
  if (missing.empty()) return said;
  const std::string text = name_lost(missing, context.place.world_size, context.store_timeout, key);
  context.store->set(key, kMissed + text);
  throw RendezvousError("rank 0: {}", text);
}

// Sends every rank's value for `about` to rank 0, which makes one answer for all.
template <typename Decide> std::string decide_together(const BackendContext& context, const std::string& about,
                                                       const std::string& mine, Decide&& decide) {
  const std::string key = "shm/" + about;
  if (context.place.rank != 0) {
    context.store->set(fmt::format("{}/{}", key, context.place.rank), mine);
    const std::string answer = await_value(context, 0, key, kAnswerMargin);
    if (answer.starts_with(kMissed)) throw RendezvousError("rank {}: {}", context.place.rank, answer.substr(1));
    return answer;
  }
  const std::string decision = decide(collect(context, key, mine));
  context.store->set(key, decision);
  return decision;
}

// Returns the first nonempty reason, with its rank.
std::string first_reason(const std::vector<std::string>& reasons) {
  for (std::size_t rank = 0; rank < reasons.size(); ++rank)
    if (!reasons[rank].empty()) return fmt::format("rank {}: {}", rank, reasons[rank]);
  return "";
}

// The leader of each rank as the store keeps it, and why not all ranks share memory.
struct Proposal {
  std::vector<int> leaders;
  std::string refusal;

  std::string encode() const {
    std::string text;
    for (const int leader : leaders) text += fmt::format("{} ", leader);
    return join_lines(text, refusal);
  }
  static Proposal decode(const std::string& value) {
    auto [text, refusal] = split_lines(value);
    std::istringstream numbers(text);
    Proposal proposal;
    for (int leader = 0; numbers >> leader;) proposal.leaders.push_back(leader);
    proposal.refusal = std::move(refusal);
    return proposal;
  }
};

// The address on which this rank listens, and the rank that it joined: itself, or a lower one.
struct Found {
  Fd listener, connection;
  int leader = 0;
  std::string refusal;  // why this rank did not join rank 0
};

std::string listen_somewhere(Fd& listener, std::string& name) {
  return reason_of_failure([&] {
    std::array<std::byte, 16> random;
    crypto::fill_random(random);
    name = "lockstep-" + crypto::hex(random);
    listener = listen_on_abstract_name(name);
  });
}

Fd try_to_reach(const BackendContext& context, const std::string& told) {
  const auto [name, node] = split_lines(told);
  if (node != context.node) throw Error("{} is '{}' there and '{}' here", env::kNode, node, context.node);
  if (name.empty()) throw Error("it has no abstract socket");
  return connect_to_abstract_name(name, Clock::now() + std::min(kConnectTime, context.store_timeout));
}

Found find_leader(const BackendContext& context) {
  const int rank = context.place.rank;
  Found found;
  std::string name;
  const std::string trouble = listen_somewhere(found.listener, name);
  if (!trouble.empty()) log::warn("backend host: rank {} shares memory with no other rank: {}", rank, trouble);
  context.store->set(fmt::format("shm/name/{}", rank), join_lines(trouble.empty() ? name : "", context.node));
  for (found.leader = 0; found.leader < rank; ++found.leader) {
    const std::string told = await_value(context, found.leader, fmt::format("shm/name/{}", found.leader));
    const std::string reason = reason_of_failure([&] { found.connection = try_to_reach(context, told); });
    if (reason.empty()) break;
    if (found.leader == 0) found.refusal = fmt::format("rank 0 is not on its machine: {}", reason);
  }
  return found;
}

// A rank that joined a rank which has itself joined another one stays alone, since the latter has no memory to give.
std::string propose(const std::vector<std::string>& said) {
  std::vector<int> chosen;
  std::vector<std::string> reasons;
  for (const std::string& value : said) {
    const auto [leader, reason] = split_lines(value);
    chosen.push_back(static_cast<int>(env::parse_integer("leader", leader, 0, static_cast<long>(chosen.size()))));
    reasons.push_back(reason);
  }
  Proposal proposal{chosen, first_reason(reasons)};
  for (std::size_t rank = 0; rank < chosen.size(); ++rank)
    if (chosen[static_cast<std::size_t>(chosen[rank])] != chosen[rank]) proposal.leaders[rank] = static_cast<int>(rank);
  return proposal.encode();
}

// If one rank of a node failed, the node is split into nodes of one rank.
std::string settle(Proposal proposal, const std::vector<std::string>& failures) {
  const std::vector<int> proposed = proposal.leaders;
  for (std::size_t failed = 0; failed < failures.size(); ++failed)
    for (std::size_t rank = 0; !failures[failed].empty() && rank < proposed.size(); ++rank)
      if (proposed[rank] == proposed[failed]) proposal.leaders[rank] = static_cast<int>(rank);
  const std::string reason = first_reason(failures);
  if (!reason.empty()) proposal.refusal = reason;
  return proposal.encode();
}

// Warns users who wonder why communication is slow. The deciding rank logs it once; a group that requires shared memory
// gets it as an error.
void warn_of_failures(const BackendContext& context, const Proposal& proposal,
                      const std::vector<std::string>& failures) {
  const NodeLayout layout(proposal.leaders);
  const auto has_failed = [&](int rank) { return !failures[static_cast<std::size_t>(rank)].empty(); };
  for (int node = 0; node < layout.nodes() && context.transport != "shm"; ++node) {
    const std::vector<int>& members = layout.members(node);
    const auto failed = std::find_if(members.begin(), members.end(), has_failed);
    if (failed == members.end()) continue;
    std::string numbers;
    for (const int rank : members) numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", rank);
    log::warn(
        "backend host: ranks {} are on one machine and cannot share its memory: they exchange over TCP, which is "
        "slower. Rank {}: {}",
        numbers, *failed, failures[static_cast<std::size_t>(*failed)]);
  }
}

}  // namespace

NodeRendezvous find_nodes(const BackendContext& context) {
  const Deadline deadline = Clock::now() + context.store_timeout;
  const int rank = context.place.rank;
  Found found = find_leader(context);
  const Proposal proposed = Proposal::decode(
      decide_together(context, "leaders", join_lines(std::to_string(found.leader), found.refusal), propose));
  NodeRendezvous rendezvous;
  const NodeLayout layout(proposed.leaders);
  const auto& members = layout.members(layout.node_of(rank));
  const int local_ranks = static_cast<int>(members.size()), local_rank = layout.local_rank_of(rank);
  std::unique_ptr<SharedMemoryProvider> provider;
  const std::string failure = reason_of_failure([&] {
    if (local_ranks == 1) return;
    provider =
        make_memfd_provider(std::move(local_rank == 0 ? found.listener : found.connection),
                            {members, local_rank, context.token, [&] { check_presence(context, deadline); }}, deadline);
    rendezvous.control = provider->share(ControlLayout::bytes(local_ranks), context.store_timeout);
  });
  found = {};  // first, so that a rank that still waits for this one sees at once that it gave up
  if (!failure.empty()) provider.reset();
  const Proposal settled =
      Proposal::decode(decide_together(context, "nodes", failure, [&](const std::vector<std::string>& failures) {
        warn_of_failures(context, proposed, failures);
        return settle(proposed, failures);
      }));
  rendezvous.layout = NodeLayout(settled.leaders);
  rendezvous.refusal = settled.refusal;
  if (rendezvous.layout.size_of_node(rendezvous.layout.node_of(rank)) == 1) {
    rendezvous.control.reset();
    return rendezvous;
  }
  rendezvous.provider = std::move(provider);
  return rendezvous;
}

}  // namespace lockstep::host
