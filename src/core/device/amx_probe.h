// Whether this process can compute with AMX's tiles.
#pragma once

namespace lockstep {

// Asks the processor, then the system, then tries a product: some virtual machines advertise instructions that fault.
// Linux lends the tiles' registers to the whole process, on demand; from then on it refuses signal stacks too small for
// them (some 12 KB; sigaltstack), and it lends nothing where a thread has such a stack. Never throws; not to be called
// by two threads at once, as it takes SIGILL and SIGSEGV meanwhile.
bool amx_works();

// What `trial` returns, and false if it meets an instruction that faults.
bool runs_without_fault(bool (*trial)());

}  // namespace lockstep
