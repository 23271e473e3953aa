// Changes of a whole graph that keep what it computes.
#pragma once

#include "src/models/onnx/onnx_graph.h"

namespace lockstep::onnx {

// Moves transposes behind the elementwise nodes that read them, joins those that meet, and drops those that cancel.
// A transposed initializer becomes an initializer, unless another node reads it as it is.
void join_transposes(Graph& graph);

// Removes nodes and initializers on which no output depends.
void remove_unused(Graph& graph);

}  // namespace lockstep::onnx
