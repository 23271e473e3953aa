// Copies in host memory of what a checkpoint saves, which the training may change meanwhile.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/train/checkpoint/checkpoint_plan.h"

namespace lockstep::train::checkpoint {

// Keeps its memory for the next save, whose tensors usually have the same names and shapes.
class HostCopies {
 public:
  // Replaces the content of all files by copies. Memory of tensors that the files no longer have is freed. Blocks until
  // the values have arrived. The files of the save before must not be in use any more. Throws InvalidArgument for
  // tensors that safetensors cannot hold, Error if the memory is exhausted.
  void take(std::vector<PlannedFile>& files);

 private:
  Tensor copy(const std::string& key, const Tensor& tensor);
  void await_copies();

  std::unordered_map<std::string, Tensor> kept_;  // by file and name; pinned for tensors of a GPU
  std::set<Device*> copying_;                     // devices whose copies may still be on their way
  std::unordered_map<std::string, Tensor> taken_;
};

}  // namespace lockstep::train::checkpoint
