#include "lockstep/data/sampler_state.h"

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

template <typename T> void read(const nlohmann::json& json, const char* name, bool may_be_missing, T& value) {
  const auto found = json.find(name);
  if (found == json.end()) {
    if (!may_be_missing)
      throw InvalidArgument("SamplerState: the JSON has no '{}': {}: expected the complete state of a sampler", name,
                            json.dump());
    return;
  }
  const bool fits = std::is_same_v<T, std::string> ? found->is_string()
                    : std::is_same_v<T, std::uint64_t>
                        ? found->is_number_unsigned() || (found->is_number_integer() && *found >= 0)
                        : found->is_number_integer();
  if (!fits)
    throw InvalidArgument("SamplerState: '{}' is {} in the JSON, expected {}", name, found->dump(),
                          std::is_same_v<T, std::string>     ? "a string"
                          : std::is_same_v<T, std::uint64_t> ? "an integer of 0 or more"
                                                             : "an integer");
  found->get_to(value);
}

}  // namespace

void to_json(nlohmann::json& json, const SamplerState& state) {
  json = {{"seed", state.seed},         {"epoch", state.epoch},     {"consumed", state.consumed},
          {"set_size", state.set_size}, {"options", state.options}, {"fingerprint", state.fingerprint}};
}

void from_json(const nlohmann::json& json, SamplerState& state) {
  if (!json.is_object()) throw InvalidArgument("SamplerState: the JSON is {}, expected an object", json.dump());
  SamplerState read_state;
  read(json, "seed", false, read_state.seed);
  read(json, "epoch", false, read_state.epoch);
  read(json, "consumed", false, read_state.consumed);
  read(json, "set_size", true, read_state.set_size);
  read(json, "options", true, read_state.options);
  read(json, "fingerprint", true, read_state.fingerprint);
  state = read_state;
}

}  // namespace lockstep::data
