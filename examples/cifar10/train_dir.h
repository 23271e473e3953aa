// The folder of a training: checkpoints and event files.
#pragma once

#include <lockstep/lockstep.h>

#include <string>

enum class TrainDir { kNew, kOverwrite, kResume };

// Collective, before the training: rank 0 checks the folder, and all ranks throw its error. kNew: InvalidArgument if
// the folder is not empty. kOverwrite: removes checkpoints and event files from it, nothing else. FileError if it
// cannot be written.
void prepare_train_dir(const std::string& folder, lockstep::ProcessGroup& group, TrainDir how);
