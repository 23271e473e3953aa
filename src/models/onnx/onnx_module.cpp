#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "onnx_file.pb.h"
#include "src/models/onnx/onnx_graph.h"

namespace lockstep::onnx {

namespace {

void put(ByteSink sink, std::string_view text) { sink.append(sink.to, text.data(), text.size()); }

void set(const std::pair<std::string, NodeAttribute>& from, file::Attribute& to) {
  to.set_name(from.first);
  if (const auto* integer = std::get_if<std::int64_t>(&from.second)) {
    to.set_kind(file::Attribute::INTEGER);
    to.set_integer(*integer);
  } else if (const auto* number = std::get_if<float>(&from.second)) {
    to.set_kind(file::Attribute::NUMBER);
    to.set_number(*number);
  } else if (const auto* text = std::get_if<std::string>(&from.second)) {
    to.set_kind(file::Attribute::TEXT);
    to.set_text(*text);
  } else {
    to.set_kind(file::Attribute::INTEGERS);
    for (const std::int64_t each : std::get<std::vector<std::int64_t>>(from.second)) to.add_integers(each);
  }
}

void set(const GraphNode& from, file::Node& to) {
  for (const std::string& input : from.inputs) to.add_inputs(input);
  for (const std::string& output : from.outputs) to.add_outputs(output);
  to.set_name(from.name);
  to.set_op(from.op);
  for (const auto& attribute : from.attributes) set(attribute, *to.add_attributes());
}

void add_entry(const char* key, const std::string& value, file::Tensor& to) {
  file::Entry& entry = *to.add_external();
  entry.set_key(key);
  entry.set_value(value);
}

void set(const Initializer& from, const std::string& external_file, file::Tensor& to) {
  for (const std::int64_t extent : from.dims) to.add_dims(extent);
  to.set_element_type(static_cast<std::int32_t>(from.type));
  to.set_name(from.name);
  if (from.offset < 0) {
    to.set_raw(from.bytes.data(), from.bytes.size());
    return;
  }
  to.set_place(file::Tensor::EXTERNAL);
  add_entry("location", external_file, to);
  add_entry("offset", std::to_string(from.offset), to);
  add_entry("length", std::to_string(from.bytes.size()), to);
}

void set(const ValueInfo& from, file::Value& to) {
  to.set_name(from.name);
  file::Type::OfTensor& tensor = *to.mutable_type()->mutable_tensor();
  tensor.set_element_type(static_cast<std::int32_t>(from.type));
  file::Shape& shape = *tensor.mutable_shape();
  for (const Dimension& dimension : from.dims) {
    file::Shape::Dimension& dim = *shape.add_dims();
    if (!dimension.name.empty())
      dim.set_name(dimension.name);
    else if (dimension.extent >= 0)
      dim.set_extent(dimension.extent);
  }
}

void set(const Graph& from, file::Model& to) {
  to.set_ir_version(from.ir_version);
  to.set_producer(from.producer);
  to.set_producer_version(from.producer_version);
  file::OperatorSet& operators = *to.add_operator_sets();
  operators.set_domain("");
  operators.set_version(from.opset);
  file::Graph& graph = *to.mutable_graph();
  graph.set_name(from.name);
  for (const GraphNode& node : from.nodes) set(node, *graph.add_nodes());
  for (const Initializer& each : from.initializers) set(each, from.external_file, *graph.add_initializers());
  for (const ValueInfo& input : from.inputs) set(input, *graph.add_inputs());
  for (const ValueInfo& output : from.outputs) set(output, *graph.add_outputs());
}

class SinkStream final : public google::protobuf::io::CopyingOutputStream {
 public:
  explicit SinkStream(ByteSink sink) : sink_(sink) {}
  bool Write(const void* buffer, int size) override {
    return sink_.append(sink_.to, buffer, static_cast<std::size_t>(size));
  }

 private:
  ByteSink sink_;
};

bool write(const Graph& graph, ByteSink file, ByteSink error) {
  file::Model model;
  set(graph, model);
  constexpr std::size_t kMost = 0x7fffffff;  // of protobuf
  if (model.ByteSizeLong() > kMost) {
    put(error, "the model without external data has more than 2 GiB");
    return false;
  }
  SinkStream sink(file);
  google::protobuf::io::CopyingOutputStreamAdaptor stream(&sink);
  return model.SerializeToZeroCopyStream(&stream) && stream.Flush();
}

}  // namespace

}  // namespace lockstep::onnx

extern "C" __attribute__((visibility("default"))) bool lockstep_onnx_write(int version,
                                                                           const lockstep::onnx::Graph& graph,
                                                                           lockstep::onnx::ByteSink file,
                                                                           lockstep::onnx::ByteSink error) {
  if (version != lockstep::onnx::kOnnxVersion) {
    lockstep::onnx::put(error, "the module belongs to another version of Lockstep: install both from one build");
    return false;
  }
  try {
    return lockstep::onnx::write(graph, file, error);
  } catch (const std::exception& exception) {
    lockstep::onnx::put(error, exception.what());
    return false;
  }
}
