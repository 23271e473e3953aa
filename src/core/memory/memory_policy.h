// How much of a GPU's memory a process takes, and when.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

struct MemoryPolicy {
  enum class Kind {
    kGrow,   // as needed; freed memory is kept for the next allocation
    kLimit,  // the same up to `bytes`, then an error
    kAll,    // `bytes` (0: all free memory, less a reserve for libraries) at the start: no later requests, and no other
             // process takes it
  };
  Kind kind = Kind::kGrow;
  std::size_t bytes = 0;

  bool operator==(const MemoryPolicy&) const = default;
};

// Parses "grow", "all", "all:20G", "8G", "512M", "1000000". Throws InvalidArgument that names `source` and shows the
// forms.
MemoryPolicy parse_memory_policy(const std::string& source, const std::string& text);

}  // namespace lockstep
