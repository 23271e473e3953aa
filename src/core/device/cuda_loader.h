// Finds and loads the CUDA part.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/core/device/cuda_library.h"

namespace lockstep {

// Loads it once per process. Throws NoGpu if there is none; Error if it cannot be loaded (with what it lacks, and the
// remedy) or has another version.
cuda::Library& cuda_library();

// The places to search, for a program at `program`: only LOCKSTEP_CUDA_LIBRARY (`set`) if it is given; otherwise next
// to the program, in ../lib, in the build tree, and finally where the system searches.
std::vector<std::filesystem::path> cuda_library_places(const std::string& set, const std::filesystem::path& program);

// Explains an error of dlopen for `library` in a sentence: what is missing and where to get it.
std::string explain_load_failure(const std::string& library, const std::string& error);

}  // namespace lockstep
