// The folder of a training: checkpoints and event files.
#pragma once

#include <lockstep/lockstep.h>

#include <string>

enum class TrainDir { kNew, kOverwrite, kResume };

// Before the training, on rank 0; other ranks return at once. kNew: throws InvalidArgument where the folder holds something. kOverwrite:
// removes checkpoints and event files from it, nothing else. FileError where it cannot be written.
void prepare_train_dir(const std::string& folder, const lockstep::ProcessGroup& group, TrainDir how);
