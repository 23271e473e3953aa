// The streams that carry a rank's output. stdout is a terminal: to a pipe the C library writes only when it has 4 KiB,
// so that a line would come late, and never from a rank that a signal kills. mpirun does the same. stderr, which is not
// buffered, is a pipe.
#pragma once

#include <string>

#include "src/launch/supervise/pipe.h"

namespace lockstep::launch {

// A pseudo terminal that changes no byte, or a pipe if the system has none. `columns` 0: the program's default width.
// Reading does not block. Throws Error.
Pipe make_terminal_stream(int columns);
// The same as a pipe.
Pipe make_pipe_stream();

// "pid 12 (tee)": a process that holds the end to which a rank writes, given our end; empty: none is found.
std::string holder_of(int read_end);

}  // namespace lockstep::launch
