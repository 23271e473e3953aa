// Whether this process can compute with AMX's tiles.
#pragma once

namespace lockstep {

// Asks the processor, then the system (Linux lends the tiles' registers on demand, and not to a process with a signal stack too small for
// them), then tries a product: some virtual machines advertise instructions that fault. Never throws; not to be called by two threads at
// once, as it takes SIGILL for the time of the trial.
bool amx_works();

// What `trial` returns, and false if it meets an instruction that this processor does not have.
bool runs_without_fault(bool (*trial)());

}  // namespace lockstep
