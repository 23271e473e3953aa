// A sampler's position in its data, to be kept: in a checkpoint, or as JSON wherever a program likes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#pragma GCC visibility push(default)
namespace lockstep::data {

// Everything that says which samples come next, on any number of ranks. The position counts over all ranks: it is right
// where all ranks have taken equally many batches of one batch_size, as training does, and then every rank has the same
// state.
struct SamplerState {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  // of this epoch, over all ranks: samples, or batches where the sampler makes these
  std::int64_t set_size = 0;  // samples of the data set; 0: not known (a checkpoint of version 0.1), not compared
  std::string options =
      {};  // the sampler's kind and options, weights and lengths by their SHA-256; empty: not known, not compared
  std::string fingerprint =
      {};  // of the data set that the sampler was made of (sampler.h); empty: not known, not compared

  bool operator==(const SamplerState&) const = default;
};

// For `json state = sampler.state()` and `state.get<SamplerState>()`, which throws InvalidArgument with the name of a
// value that is missing or of another type. `set_size`, `options` and `fingerprint` may be missing. Include
// <nlohmann/json.hpp>.
void to_json(nlohmann::json& json, const SamplerState& state);
void from_json(const nlohmann::json& json, SamplerState& state);

}  // namespace lockstep::data
#pragma GCC visibility pop
