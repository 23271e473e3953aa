// What a checkpoint keeps of a Trainer beside model and optimizer: its history and its callbacks' state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/train/callback_base.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/history.h"

namespace lockstep::train {

struct SavedCallback {
  std::string name;  // of several with one state_name(), the second is "<name> #2"
  CallbackState state;
};

// The states of those that have one.
std::vector<SavedCallback> states_of(const std::vector<std::shared_ptr<Callback>>& callbacks);
// Calls restore() of each callback of which there is a state.
void restore_states(Trainer& trainer, const std::vector<std::shared_ptr<Callback>>& callbacks,
                    const std::vector<SavedCallback>& states);

struct TrainerState {
  History history;
  std::vector<SavedCallback> callbacks;
};
ProgramState program_state_of(const TrainerState& state);
// Of a checkpoint that another program wrote: empty. Of the history, the epochs before number `epochs`. Throws
// FileError with the folder for text that a Trainer did not write.
TrainerState trainer_state_of(const ProgramState& program, std::int64_t epochs, const std::string& folder);

}  // namespace lockstep::train
