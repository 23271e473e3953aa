#include "lockstep/train/restore_sampler.h"

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "src/ddp/checks/replicas.h"
#include "src/train/checkpoint/files.h"

namespace lockstep {

void restore_sampler(data::Sampler& sampler, const data::SamplerState& state,
                     const std::shared_ptr<ProcessGroup>& wanted) {
  std::string refusal;
  try {
    sampler.check(state);
  } catch (const InvalidArgument& error) {
    refusal = error.what();
  }
  if (const auto group = wanted ? wanted : default_process_group()) {
    const auto text = [](const data::SamplerState& of) { return nlohmann::json(of).dump(-1, ' ', true); };
    check_same_on_all_ranks(*group, "restore_sampler",
                            {"the state " + text(state), checkpoint::description_of(sampler)},
                            "gave different states or samplers, no rank has taken its own: give all of them the same");
  }
  if (!refusal.empty()) throw InvalidArgument("restore_sampler: {}", refusal);
  sampler.restore(state);
}

}  // namespace lockstep
