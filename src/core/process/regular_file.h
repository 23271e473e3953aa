// Opening a file that is to be read: a FIFO, a device or a folder in its place is named at once.
#pragma once

#include <cstdint>
#include <string>

#include "src/core/process/fd.h"

namespace lockstep {

struct RegularFile {
  Fd fd;  // at the file's begin
  std::uint64_t bytes = 0;
};

// Never waits: opening a FIFO would wait for a writer. Throws FileError with path and reason.
RegularFile open_regular_file(const std::string& path);

// From the file's present place; fewer only at its end. `path` is for the FileError.
std::size_t read_some(const Fd& file, void* data, std::size_t bytes, const std::string& path);

}  // namespace lockstep
