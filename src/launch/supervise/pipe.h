// Pipes whose ends close on exec: no program that is started inherits them.
#pragma once

#include <cstddef>

#include "src/core/process/fd.h"

namespace lockstep::launch {

struct Pipe {
  Fd read_end, write_end;
};

// Both ends close on exec. Throws Error.
Pipe make_pipe();

// write(2) until all of it is out; false on an error (errno says which).
bool write_all(int fd, const void* data, std::size_t bytes);

}  // namespace lockstep::launch
