// The descriptors 0, 1 and 2, which belong to input, output and errors even in a process that was started without them.
#pragma once

namespace lockstep {

// Opens /dev/null in the place of those that are closed: the next socket would take their numbers, and what the program
// prints would go to a peer. Call it before anything else is opened.
void occupy_standard_streams() noexcept;

// In a rank, whose launcher may give it a pipe or a file: stdout is written line by line, so that a line comes when it
// is printed, and is not lost when the rank dies. A program that has chosen to write each character at once keeps that.
void write_output_by_lines() noexcept;

}  // namespace lockstep
