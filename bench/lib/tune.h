// all_reduce --tune FILE: which path is the fastest for which message on this machine, with this number of ranks.
//
//   whole or by slices   64 B to 8 KiB; the limit is the largest message up to which reading whole is not slower,
//   registered and
//                        unregistered memory counted alike
//   steps of tiles       64 to 512 KiB, by plain messages of 1 to 16 MiB; what is not usual must be 5 % faster
// Every candidate is a group with a table of its own. All of them live at once and take turns call by call, so that
// whatever else the machine does meets all alike; medians decide.
#pragma once

#include <string>

namespace lockstep::bench {

// In every rank: measures, and rank 0 prints what it saw and writes the table that LOCKSTEP_TUNING loads. Returns the
// exit code. Throws InvalidArgument where there is nothing to tune (one rank, not shared memory), FileError for FILE.
int tune(const std::string& file);

}  // namespace lockstep::bench
