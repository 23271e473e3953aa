// The descriptors 0, 1 and 2 must belong to input, output and errors, even in a process that was started without them.
#pragma once

namespace lockstep {

// Opens /dev/null in place of those that are closed. Otherwise the next socket would get their numbers, and the
// program's output would go to a peer. Call it before anything else is opened.
void occupy_standard_streams() noexcept;

// For a rank, whose launcher may give it a pipe or a file: stdout is written line by line, so that a line appears when
// it is printed and is not lost if the rank dies. Does not change a program that writes each character at once.
void write_output_by_lines() noexcept;

}  // namespace lockstep
