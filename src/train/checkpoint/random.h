// The random states of all ranks in state.json: "random" is rank 0's, and "random_of_ranks" lists those of all where
// they differ.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/tensor/random.h"

namespace lockstep::checkpoint {

// Into `state`.
void add_random(nlohmann::ordered_json& state, const std::vector<RandomState>& of_ranks);

// That of rank `rank` of `ranks`. A rank that the saved run did not have begins fresh streams, of a seed that is made
// of rank 0's and the rank's number.
RandomState random_of(const nlohmann::json& state, int rank, int ranks);

// "", or what becomes of the ranks' own states on another number of ranks.
std::string warning_of_random(const nlohmann::json& state, int ranks);

}  // namespace lockstep::checkpoint
