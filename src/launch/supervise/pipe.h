// Pipes whose ends close on exec, so that started programs do not inherit them.
#pragma once

#include <cstddef>

#include "src/core/process/fd.h"

namespace lockstep::launch {

struct Pipe {
  Fd read_end, write_end;
};

// Both ends close on exec. Throws Error.
Pipe make_pipe();

// Repeats write(2) until all bytes are written; returns false on an error (in errno).
bool write_all(int fd, const void* data, std::size_t bytes);

}  // namespace lockstep::launch
