#include "src/ddp/checks/replica_check.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/base/message_text.h"
#include "src/ddp/checks/module_watch.h"
#include "src/optim/swapped_weights.h"

namespace lockstep {

namespace {

using Hashes = std::vector<std::uint64_t>;

// Not a cryptographic hash: it takes eight bytes at a time, in a fraction of the time of SHA-256.
std::uint64_t hash_of_bytes(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0x243f6a8885a308d3 ^ bytes.size();  // fractional digits of pi
  const auto add = [&](std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: an odd multiplier that spreads bits upwards
    hash ^= hash >> 29;
  };
  for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    add(word);
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  add(rest);
  return hash;
}

Hashes hashes_of(const std::vector<NamedTensor>& tensors) {
  Hashes hashes;
  for (const auto& [name, tensor] :
       optim::with_weights(tensors)) {  // while they hold averages, hash the weights that are saved
    const Tensor host = tensor.to(cpu_device());
    hashes.push_back(hash_of_bytes({host.buffer().data(), host.bytes()}));
  }
  return hashes;
}

Hashes gathered(ProcessGroup& group, const Hashes& own) {
  Hashes all(own.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(own.data(), all.data(), own.size() * sizeof(std::uint64_t), DType::kUInt8,
                   {.purpose = {"replica check"}});
  return all;
}

// Returns "rank 1" or "ranks 0, 2": those whose hash differs from the most common one, or of two ranks, from rank 0's.
std::string odd_ranks(const Hashes& hashes) {
  const auto votes = [&](std::uint64_t hash) { return std::count(hashes.begin(), hashes.end(), hash); };
  std::uint64_t most = hashes[0];
  for (const std::uint64_t hash : hashes)
    if (votes(hash) > votes(most)) most = hash;
  std::vector<std::string> odd;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank)
    if (hashes[rank] != most) odd.push_back(fmt::format("{}", rank));
  return (odd.size() == 1 ? "rank " : "ranks ") + joined(odd, ", ");
}

// Returns "", or the first parameter that differs and on which ranks.
std::string first_difference(ProcessGroup& group, const std::vector<NamedTensor>& parameters) {
  const Hashes own = hashes_of(parameters);
  const std::uint64_t whole = hash_of_bytes(std::as_bytes(std::span(own)));
  const Hashes wholes = gathered(group, {whole});
  if (std::all_of(wholes.begin(), wholes.end(), [&](std::uint64_t each) { return each == wholes[0]; })) return "";
  const Hashes all = gathered(group, own);
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::string first;
  std::size_t count = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    Hashes of_ranks;
    for (std::size_t rank = 0; rank < ranks; ++rank) of_ranks.push_back(all[rank * own.size() + i]);
    if (std::all_of(of_ranks.begin(), of_ranks.end(), [&](std::uint64_t each) { return each == of_ranks[0]; }))
      continue;
    if (count++ == 0)
      first =
          fmt::format("parameter '{}' of {} differs from the other ranks'", parameters[i].name, odd_ranks(of_ranks));
  }
  return fmt::format("{} ({} of {} parameters differ)", first, count, parameters.size());
}

}  // namespace

void check_replicas(const nn::Module& module, ProcessGroup* call, const char* operation) {
  for (const ReplicatedTensors* const wrapper : replicated_tensors_of(module)) {
    if (wrapper->group->world_size() == 1 || wrapper->is_joining()) continue;
    if (call == nullptr || !call->has_ranks_of(*wrapper->group))
      continue;  // ranks that make no such call cannot answer
    const std::string difference = first_difference(*call, wrapper->parameters);
    if (difference.empty()) continue;
    if (!wrapper->may_differ())
      throw MismatchError(
          "{}: the replicas differ: {}. Load and change weights in the same way on all ranks, or before the module is "
          "wrapped; list parameters that may differ between ranks in ignored_parameters",
          operation, difference);
    if (call->rank() == 0)
      log::warn(
          "{}: rank 0's weights are saved, but the ranks' weights differ: {}. Call "
          "PeriodicModelAverager::average_now() before",
          operation, difference);
  }
}

}  // namespace lockstep
