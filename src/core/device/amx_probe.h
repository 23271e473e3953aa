// Whether this process can compute with AMX's tiles.
#pragma once

namespace lockstep {

// Queries the processor, requests permission from the system, then tries a product, because some virtual machines
// advertise instructions that fault. Linux grants the tiles' registers to the entire process on request. From then on
// it refuses signal stacks that are too small for them (about 12 KB; sigaltstack), and it grants nothing if a thread
// already has such a stack. Never throws. Must not be called by two threads at once, because it temporarily handles
// SIGILL and SIGSEGV.
bool amx_works();

// Returns the result of `trial`, or false if it executes an instruction that faults. Exists on x86-64 only.
bool runs_without_fault(bool (*trial)());

}  // namespace lockstep
