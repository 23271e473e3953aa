// Graphs in ONNX's format.
#pragma once

#include <cstdint>
#include <string>

#include "src/models/onnx/onnx_graph.h"

namespace lockstep::onnx {

// Replaces `path`, and if the initializers have more bytes than `most_bytes_in_file`, first `path`.data. Throws
// FileError, and Error if the library that writes cannot be loaded.
void write_onnx(Graph& graph, const std::string& path, std::uint64_t most_bytes_in_file);

}  // namespace lockstep::onnx
