// A sampler's position in its data, for a checkpoint, or as JSON for any other place.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#pragma GCC visibility push(default)
namespace lockstep::data {

// Everything that determines the next samples, with any number of ranks. The position counts over all ranks. It is
// valid when all ranks have taken equally many batches of the same batch_size, as in training; then all ranks have the
// same state.
struct SamplerState {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;     // in this epoch, over all ranks: samples, or batches when the sampler makes batches
  std::int64_t set_size = 0;     // samples in the data set; 0: unknown (a checkpoint of version 0.1) and not compared
  std::string options = {};      // the sampler's kind and options, weights and lengths as SHA-256; empty: not compared
  std::string fingerprint = {};  // of the data set that the sampler was made from (sampler.h); empty: not compared

  bool operator==(const SamplerState&) const = default;
};

// Conversions for `json state = sampler.state()` and `state.get<SamplerState>()`. The latter throws InvalidArgument
// with the name of a value that is missing or has another type; `set_size`, `options` and `fingerprint` may be missing.
// Include <nlohmann/json.hpp>.
void to_json(nlohmann::json& json, const SamplerState& state);
void from_json(const nlohmann::json& json, SamplerState& state);

}  // namespace lockstep::data
#pragma GCC visibility pop
