// The folder that holds a job's checkpoints: whose it is, what may be removed from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "src/train/checkpoint/owner.h"

namespace lockstep::checkpoint {

// Runs `write` in the folder, which is there then, is no other job's (unless `overwrite`), and holds nothing
// unfinished: what a crash left is removed here alone, under the lock, because a reader cannot tell it from a
// checkpoint that another machine is writing. Throws FileError.
void in_own_folder(const std::filesystem::path& folder, bool overwrite,
                   const std::function<void(const FolderUse& use)>& write);

// Is it the folder of one checkpoint? A manifest alone does not tell: others call files so, too.
bool is_checkpoint(const std::filesystem::path& folder);

// A run that goes over the same step again must not touch the folder that `latest` may name.
std::string free_name(const std::filesystem::path& folder, std::int64_t step);

// The new one and the newest of the others stay: by their manifests' sequence numbers, then by step.
void remove_old(const std::filesystem::path& folder, const std::string& newest, int keep);

void remove_quietly(const std::filesystem::path& path);

}  // namespace lockstep::checkpoint
