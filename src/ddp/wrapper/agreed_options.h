// What wrapping asks of the options: that each rank's can be, and that all are the same.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/ddp_options.h"
#include "lockstep/nn/module.h"

namespace lockstep {

// Collective. InvalidArgument on all ranks when the options of one cannot be, MismatchError when they differ.
// `refusal`: a further reason of this rank's, or "".
void check_options(ProcessGroup& group, const nn::Module& module, const DistributedDataParallelOptions& options,
                   const std::string& refusal);

// "", or why a wrapper cannot join(): the same on all ranks.
std::string refusal_of_join(const nn::Module& module, bool is_static, const CommHook& hook);

// The entries whose names, and other names of the same tensor, are not among `ignored`.
std::vector<NamedTensor> without(const nn::Module& module, const std::vector<NamedTensor>& tensors,
                                 const std::vector<std::string>& ignored);
// The module's parameters and buffers that have one of these names.
std::vector<Tensor> tensors_named(const nn::Module& module, const std::vector<std::string>& names);
// Is it one of these, under whatever name?
bool is_among(const Tensor& tensor, const std::vector<Tensor>& tensors);

std::vector<GradientInfo> describe_gradients(const nn::Module& module, const std::vector<NamedTensor>& parameters,
                                             const std::vector<std::string>& delayed_names);
// By name, the index into `parameters`, for rebuild_buckets(): InvalidArgument for another name.
std::vector<std::size_t> indices_of(const std::vector<std::string>& names, const std::vector<NamedTensor>& parameters);
ReducerOptions reducer_options(const DistributedDataParallelOptions& options, std::function<float()> factor);

// "'a', 'b' and 7 more"
std::string quoted(const std::vector<std::string>& names);

}  // namespace lockstep
