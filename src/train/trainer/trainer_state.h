// The part of a checkpoint that a Trainer adds to model and optimizer: its history and its callbacks' state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/callback_base.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/history.h"
#include "src/train/trainer/epoch_position.h"

namespace lockstep::train {

struct SavedCallback {
  std::string name;  // the second one with the same state_name() is called "<name> #2"
  CallbackState state;
};

// Returns the states of those callbacks that have one.
std::vector<SavedCallback> states_of(const std::vector<std::shared_ptr<Callback>>& callbacks);
// Calls restore() of each callback that has a saved state.
void restore_states(Trainer& trainer, const std::vector<std::shared_ptr<Callback>>& callbacks,
                    const std::vector<SavedCallback>& states);

struct TrainerState {
  History history;
  std::vector<SavedCallback> callbacks;
  std::optional<EpochPosition> position = {};  // nullopt: between two epochs
};
ProgramState program_state_of(const TrainerState& state);
// Returns an empty state for a checkpoint that another program wrote. The history has the epochs before number
// `epochs`. Throws FileError with the folder for text that a Trainer did not write.
TrainerState trainer_state_of(const ProgramState& program, std::int64_t epochs, const std::string& folder);

}  // namespace lockstep::train
