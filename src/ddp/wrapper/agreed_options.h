// Checks of the options at wrapping: each rank's must be valid, and all must be the same.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp_options.h"
#include "lockstep/nn/module.h"

namespace lockstep {

// Collective. Throws InvalidArgument on all ranks if one rank's options are invalid, MismatchError if they differ.
// `refusal`: an additional objection of this rank, or "".
void check_options(ProcessGroup& group, const nn::Module& module, const DistributedDataParallelOptions& options,
                   const std::string& refusal);

// Returns "", or why a wrapper cannot join(); the same on all ranks.
std::string refusal_of_join(const nn::Module& module, bool is_static, const CommHook& hook);

// Returns the entries of `tensors` without those in `ignored`, including other names of the same tensor.
std::vector<NamedTensor> without(const nn::Module& module, const std::vector<NamedTensor>& tensors,
                                 const std::vector<std::string>& ignored);
// Returns the module's parameters and buffers with these names.
std::vector<Tensor> tensors_named(const nn::Module& module, const std::vector<std::string>& names);
// Returns whether the tensor is one of these, under any name.
bool is_among(const Tensor& tensor, const std::vector<Tensor>& tensors);

std::vector<GradientInfo> describe_gradients(const nn::Module& module, const std::vector<NamedTensor>& parameters,
                                             const std::vector<std::string>& delayed_names);
// Maps names to indices into `parameters`, for rebuild_buckets(). Throws InvalidArgument for an unknown name.
std::vector<std::size_t> indices_of(const std::vector<std::string>& names, const std::vector<NamedTensor>& parameters);
ReducerOptions reducer_options(const DistributedDataParallelOptions& options, std::function<float()> factor);

}  // namespace lockstep
