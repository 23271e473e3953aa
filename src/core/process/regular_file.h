// Opens a file for reading. If a FIFO, a device or a folder is in its place, that is reported at once.
#pragma once

#include <cstdint>
#include <string>

#include "src/core/process/fd.h"

namespace lockstep {

struct RegularFile {
  Fd fd;  // at the file's begin
  std::uint64_t bytes = 0;
};

// Never blocks, although opening a FIFO would wait for a writer. Throws FileError with path and reason.
RegularFile open_regular_file(const std::string& path);

// Reads from the file's present position; returns fewer bytes only at its end. `path` is for the FileError.
std::size_t read_some(const Fd& file, void* data, std::size_t bytes, const std::string& path);

}  // namespace lockstep
