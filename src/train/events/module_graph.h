// A module as TensorBoard's graph of nodes (graph.proto, node_def.proto).
//
// A node is a call of a module without children, or one of the job that a module with children does itself; '/' in its
// name puts it into the box of its parent.
#pragma once

#include <span>

#include "lockstep/nn/module.h"
#include "src/train/files/protobuf_encoder.h"

namespace lockstep::events {

// In the order of registration, each joined to the one before.
Message graph_of(const nn::Module& module);

// In the order of the calls of one forward, joined by the tensors that went from one to the other, see
// SummaryWriter::add_graph().
Message graph_of(nn::Module& module, std::span<const nn::InputSpec> inputs);

}  // namespace lockstep::events
