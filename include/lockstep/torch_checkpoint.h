// Checkpoints of a training with LibTorch: parameters, buffers, and the state of a torch optimizer.
//
//   run/step-000000000120.pt   an archive of torch::save(): model, optimizer, step
//   run/latest                 its name and SHA-256; replaced last
//
// Rank 0 writes. A file becomes visible when all of it is on the disk, so that after a crash at any point the
// checkpoint before is intact.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

#pragma GCC visibility push(default)
namespace lockstep {

// The caller owns all of them; they are used during the call only.
struct TorchCheckpointParts {
  torch::nn::Module& model;  // of TorchDdpOptions::ignored_parameters, all ranks get rank 0's values
  torch::optim::Optimizer& optimizer;
  std::shared_ptr<ProcessGroup> group;
  std::int64_t step = 0;  // steps done
  int keep = 2;           // newest checkpoints to keep, including the new one
};

// Collective; blocks until the checkpoint is on the disk. Makes the folder if it does not exist. Returns the file's
// path on rank 0, "" on the others. If rank 0 fails, the previous checkpoint is still the latest, and all ranks throw
// FileError. Throws InvalidArgument for a null group, a negative step or keep below 1, MismatchError if the ranks are
// at different steps.
std::string save_torch_checkpoint(const std::string& folder, const TorchCheckpointParts& parts);

// Collective. Rank 0 reads `latest`, compares the file's SHA-256, and sends the file to all ranks, which take its
// values and step, on the devices of the model and the optimizer's parameters. Returns the step, or nullopt on all
// ranks if the folder has no checkpoint. If the file is missing, damaged, or of another model (names, shapes, types)
// or class of optimizer, all ranks throw FileError, and nothing has changed on any; if only the optimizer's groups
// differ, they throw FileError, and the optimizer is not usable.
std::optional<std::int64_t> load_torch_checkpoint(const std::string& folder, const TorchCheckpointParts& parts);

}  // namespace lockstep
#pragma GCC visibility pop
