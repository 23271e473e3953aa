#include "src/train/checkpoint/random.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::checkpoint {

namespace {

constexpr const char* kOfRanks = "random_of_ranks";

RandomState state_in(const nlohmann::json& random) {
  return {random.at("seed"), random.at("next_stream"), random.value("next_dropout", std::uint64_t{0})};
}

nlohmann::ordered_json json_of(const RandomState& random) {
  return {{"seed", random.seed}, {"next_stream", random.next_stream}, {"next_dropout", random.next_dropout}};
}

// Philox with the seed as its key and the rank in its counter: no other rank's, and not the seed itself.
std::uint64_t seed_of_rank(std::uint64_t seed, int rank) {
  constexpr std::uint32_t kPurpose = 0x72616e6b;  // "rank"
  const auto block = philox4x32({static_cast<std::uint32_t>(rank), 0, 0, kPurpose},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (std::uint64_t{block[1]} << 32) | block[0];
}

}  // namespace

void add_random(nlohmann::ordered_json& state, const std::vector<RandomState>& of_ranks) {
  state["random"] = json_of(of_ranks.front());
  if (std::all_of(of_ranks.begin(), of_ranks.end(), [&](const RandomState& each) { return each == of_ranks.front(); }))
    return;
  auto list = nlohmann::ordered_json::array();
  for (const RandomState& each : of_ranks) list.push_back(json_of(each));
  state[kOfRanks] = std::move(list);
}

RandomState random_of(const nlohmann::json& state, int rank, int ranks) {
  const RandomState first = state_in(state.at("random"));
  if (!state.contains(kOfRanks)) return first;
  const nlohmann::json& list = state.at(kOfRanks);
  const auto number = static_cast<std::size_t>(rank);
  if (ranks == 1) return first;
  if (number < list.size()) return state_in(list.at(number));
  return {seed_of_rank(first.seed, rank), 0, 0};
}

std::string warning_of_random(const nlohmann::json& state, int ranks) {
  if (!state.contains(kOfRanks)) return "";
  const int saved = static_cast<int>(state.at(kOfRanks).size());
  if (ranks == saved) return "";
  const std::string begin =
      fmt::format("each of its {} ranks had a random state of its own, and this job has {}: ", saved, ranks);
  if (ranks < saved) return begin + fmt::format("those of ranks from {} on are not used", ranks);
  return begin +
         fmt::format("ranks from {} on begin fresh streams, of seeds made of rank 0's and their numbers", saved);
}

}  // namespace lockstep::checkpoint
