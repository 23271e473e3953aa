// The streams through which a rank's output comes. stdout is a terminal: into a pipe the C library writes only once it
// has 4 KiB, so that a line would come late, and not at all from a rank that dies by a signal. mpirun does the same.
// stderr is not buffered: a pipe.
#pragma once

#include <string>

#include "src/launch/supervise/pipe.h"

namespace lockstep::launch {

// A pseudo terminal that changes no byte, or a pipe where the system gives none. `columns` 0: as wide as a program
// thinks. Reading does not block. Throws Error.
Pipe make_terminal_stream(int columns);
// The same as a pipe.
Pipe make_pipe_stream();

// "pid 12 (tee)": a process that holds the end to which a rank writes; empty: none is seen. Given our end.
std::string holder_of(int read_end);

}  // namespace lockstep::launch
