// Writes a module as an ONNX file, for onnxruntime and other runtimes.
//
//   export_onnx(net, {images}, "net.onnx", {.input_names = {"images"}, .output_names = {"logits"}});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct OnnxOptions {
  // Names of the inputs and outputs, in the order of the module's. Empty: "input" and "output", and with several
  // "input_0", "input_1", ... Names are unique and not empty.
  std::vector<std::string> input_names = {}, output_names = {};
  std::string batch_name = "batch";  // of dimension 0 of inputs and outputs, which has any extent
  int opset = 17;                    // ONNX's operator set: 17, 18, 19 or 20
  // If the module's tensors have more bytes, they are in a second file, PATH.data, which belongs next to PATH. A file
  // of ONNX has less than 2 GiB.
  std::uint64_t most_bytes_in_file = 1'900'000'000;
};

// Runs the module in evaluation mode on `example_inputs` (N, ...), N >= 1, once as they are and once with more samples
// made of their elements, and writes what it computed. In the file N is free; all other extents are those of the
// examples. Integer inputs must have the values of a real batch: the second run has the same values at other places,
// and finds values that the module read by itself only if they differ there.
//
// Images stay (N, H, W, C). Parameters have their names in the module; computations are float32. The module, its mode
// and the thread's random streams are as before. The same module and inputs give the same bytes. The file is replaced
// as a whole or not at all; a second file is replaced before it. Blocks until all is on the disk.
//
// The lengths of attention, mean_pooling(), LSTM and GRU, which are numbers and not a tensor, become the int64 input (N)
// that had the same values in both runs: the module reads its lengths from that input.
//
// Throws InvalidArgument that names the operator, its module and its shape: for an operator without a counterpart in
// ONNX, and for a Node of the program's own; for a value that depends on the number of samples or on the inputs in a
// way that no operator has recorded (a loop over samples, span(), clone(), copy_from(), random numbers); for 16-bit
// parameters and values (convert the module with load_state_dict() into a float32 one; an AutoCast around the call has
// no effect); for an input that nothing reads, and an output that depends on no input; for options and inputs that do
// not fit. Throws FileError with path and reason, and Error if Lockstep was built without protobuf.
void export_onnx(nn::Module& module, const Tensors& example_inputs, const std::string& path,
                 const OnnxOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop
