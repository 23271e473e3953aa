// all_reduce --tune FILE: finds the fastest path for each message size on this machine, with this number of ranks.
//
//   whole or by slices   64 B to 8 KiB; the limit is the largest message up to which reading the entire message is not
//                        slower; registered and unregistered memory count alike
//   steps of tiles       64 to 512 KiB, by unregistered messages of 1 to 16 MiB; a step other than the usual one
//                        must be 5 % faster
// Every candidate is a group with its own table. All of them exist at once and take turns call by call, so that other
// load on the machine affects all alike; medians decide.
#pragma once

#include <string>

namespace lockstep::bench {

// Runs on every rank. Measures; rank 0 prints the results and writes the table that LOCKSTEP_TUNING loads. Returns the
// exit code. Throws InvalidArgument if there is nothing to tune (one rank, not shared memory), FileError for FILE.
int tune(const std::string& file);

}  // namespace lockstep::bench
