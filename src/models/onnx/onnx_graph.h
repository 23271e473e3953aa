// A model as ONNX has it, for the library that writes it (onnx_module.cpp), which has nothing else of Lockstep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::onnx {

// The numbers of ONNX's TensorProto.DataType.
enum class ElementType : std::int32_t { kFloat = 1, kUInt8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7, kBool = 9 };

struct Initializer {
  std::string name;
  ElementType type = ElementType::kFloat;
  std::vector<std::int64_t> dims;
  std::span<const std::byte> bytes;  // little-endian, row-major
  std::shared_ptr<const void> memory;
  std::int64_t offset = -1;  // in the file of external data; -1: in the model's file
};

using NodeAttribute = std::variant<std::int64_t, float, std::string, std::vector<std::int64_t>>;

struct GraphNode {
  std::string op, name;
  std::vector<std::string> inputs, outputs;  // an input of the name "" is left out
  std::vector<std::pair<std::string, NodeAttribute>> attributes;
};

struct Dimension {
  std::int64_t extent = 0;
  std::string name;  // not empty: a dimension with this name. Extent -1 without a name: unknown
};

struct ValueInfo {
  std::string name;
  ElementType type = ElementType::kFloat;
  std::vector<Dimension> dims;
};

struct Graph {
  std::string name, producer, producer_version, external_file;
  int opset = 0, ir_version = 0;
  std::vector<GraphNode> nodes;  // each after those whose outputs it reads
  std::vector<Initializer> initializers;
  std::vector<ValueInfo> inputs, outputs;
};

// Receives the bytes of the file; false stops the writing.
struct ByteSink {
  void* to;
  bool (*append)(void* to, const void* bytes, std::size_t count);
};

// The only symbol of liblockstep_onnx.so. False: `error` has the reason, unless `file` has stopped the writing.
using OnnxWrite = bool (*)(int version, const Graph& graph, ByteSink file, ByteSink error);
inline constexpr const char* kOnnxWrite = "lockstep_onnx_write";
inline constexpr const char* kOnnxFile = "liblockstep_onnx.so";
inline constexpr int kOnnxVersion = 1;  // change it with this file

}  // namespace lockstep::onnx
