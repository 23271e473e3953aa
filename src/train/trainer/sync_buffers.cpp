#include "lockstep/comm/bootstrap.h"
#include "lockstep/train/evaluate.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/ignored_tensors.h"

namespace lockstep::train {

void sync_buffers(const nn::Module& model, const std::shared_ptr<ProcessGroup>& group) {
  const auto present = group ? group : default_process_group();
  if (!present || present->world_size() == 1) return;
  std::vector<NamedTensor> shared;
  for (NamedTensor& buffer : model.named_buffers())
    if (!IgnoredTensors::has(buffer.tensor)) shared.push_back(std::move(buffer));
  replace_by_roots(*present, shared, "buffers for evaluation");
}

}  // namespace lockstep::train
