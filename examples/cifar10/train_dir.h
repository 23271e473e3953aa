// The folder of a training: checkpoints and event files.
#pragma once

#include <lockstep/lockstep.h>

#include <string>

enum class TrainDir { kNew, kOverwrite, kResume };

// Before the training, collective: rank 0 looks, and all ranks throw what it finds. kNew: InvalidArgument where the folder holds something.
// kOverwrite: removes checkpoints and event files from it, nothing else. FileError where it cannot be written.
void prepare_train_dir(const std::string& folder, lockstep::ProcessGroup& group, TrainDir how);
