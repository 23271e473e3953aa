// Converts a module to TensorBoard's graph of nodes (graph.proto, node_def.proto).
//
// A node is a call of a module without children, or one of the operations that a module with children does itself. A
// '/' in its name puts it into its parent's box.
#pragma once

#include <span>

#include "lockstep/nn/module.h"
#include "src/train/files/protobuf_encoder.h"

namespace lockstep::train::events {

// Nodes in the order of registration, each connected to the one before.
Message graph_of(const nn::Module& module);

// Nodes in the order of the calls of one forward pass, connected by their tensors, see SummaryWriter::add_graph().
Message graph_of(nn::Module& module, std::span<const nn::InputSpec> inputs);

}  // namespace lockstep::train::events
