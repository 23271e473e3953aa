// Which layers a stage has, and which devices: a pure function of the model and of the options.
#pragma once

#include <vector>

#include "lockstep/nn/branches.h"
#include "lockstep/nn/module.h"

namespace lockstep::train {

// The layers of all stages. Throws InvalidArgument unless the model is an nn::Sequential with no parameters of its own,
// for more stages than layers, for .stage_layers that do not add up, and for a parameter that two stages would share.
std::vector<std::vector<nn::Module*>> cut_into_stages(nn::Module& model, std::size_t stages,
                                                      const std::vector<int>& stage_layers);

// The outermost nn::Branches of a layer, in order.
std::vector<nn::Branches*> branches_in(nn::Module& layer);

struct StagePlan {
  std::vector<nn::Module*> layers;
  std::vector<Device*> devices;  // the first has all layers, except those branches that the others have
};

// Stages on `devices`, in order. A stage has one device, or, if its layers include nn::Branches, up to as many as the
// widest of these has branches. Without `stage_layers`: the fewest stages that use all devices, cut as
// cut_into_stages() does; a model without branches has a stage for each device. Throws InvalidArgument as
// cut_into_stages() does, and if stages with these layers do not use all devices.
std::vector<StagePlan> plan_stages(nn::Module& model, const std::vector<Device*>& devices,
                                   const std::vector<int>& stage_layers);

// Moves the layers of a stage to its devices: branch i of each nn::Branches to device i, modulo their number.
void place_layers(const std::vector<nn::Module*>& layers, const std::vector<Device*>& devices);

}  // namespace lockstep::train
