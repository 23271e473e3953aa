// Saves that failed: which errors the training survives, and the warning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::train::checkpoint {

// A refusal of the folder, here or on another rank, which is no fault of the file system.
bool is_refusal(const FileError& error);

// Logs that the step is not saved and why, and names the newest checkpoint that is intact.
void warn_not_saved(const std::filesystem::path& folder, std::int64_t step, const std::string& reason) noexcept;

}  // namespace lockstep::train::checkpoint
