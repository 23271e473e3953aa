// Finds and loads the CUDA part.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/core/device/cuda_library.h"

namespace lockstep {

// Loads it once in a process. Throws NoGpu: there is none; Error: not loadable (what it misses, and the remedy), of
// another version.
cuda::Library& cuda_library();

// Where it may lie, for a program at `program`: LOCKSTEP_CUDA_LIBRARY (`set`) alone, or beside the program, in ../lib,
// in the build tree, and last where the system looks.
std::vector<std::filesystem::path> cuda_library_places(const std::string& set, const std::filesystem::path& program);

// A sentence for what dlopen said of `library`: what is missing and where to get it. Pure.
std::string explain_load_failure(const std::string& library, const std::string& error);

}  // namespace lockstep
