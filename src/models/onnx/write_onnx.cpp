#include "src/models/onnx/write_onnx.h"

#include <dlfcn.h>

#include <exception>
#include <filesystem>
#include <span>

#include "lockstep/core/error.h"
#include "src/core/base/own_module.h"
#include "src/train/files/durable_file.h"

namespace lockstep::onnx {

namespace {

constexpr std::size_t kAlignment = 4096;    // of tensors in the second file, which readers map
constexpr std::size_t kSmallTensor = 1024;  // shapes and scalars stay where readers look for them

OnnxWrite load_writer(const std::string& path) {
  const OwnModule module = load_own_module(kOnnxFile, "src/models/onnx");
  if (module.handle == nullptr && !module.file.empty())
    throw Error(
        "export_onnx: {}: {} cannot be loaded: {}: install libprotobuf-lite32, or the package of your system that has "
        "libprotobuf-lite",
        path, module.file, module.error);
  if (module.handle == nullptr)
    throw Error(
        "export_onnx: {}: ONNX files need {}, which cannot be loaded ({}): install libprotobuf-dev and "
        "protobuf-compiler, configure the build of Lockstep again (meson configure BUILD -Donnx=enabled) and compile "
        "it; "
        "or put the module's folder into LD_LIBRARY_PATH",
        path, kOnnxFile, module.error);
  const auto write = reinterpret_cast<OnnxWrite>(::dlsym(module.handle, kOnnxWrite));
  if (write == nullptr) throw Error("export_onnx: {}: {} is not Lockstep's module", path, kOnnxFile);
  return write;
}

// The file to which the module writes. No exception passes through the module.
struct Receiver {
  train::DurableFile& file;
  std::exception_ptr failure;

  static bool append(void* to, const void* bytes, std::size_t count) {
    auto& self = *static_cast<Receiver*>(to);
    try {
      self.file.write(std::span(static_cast<const std::byte*>(bytes), count));
      return true;
    } catch (...) {
      self.failure = std::current_exception();
      return false;
    }
  }
};

bool append_text(void* to, const void* bytes, std::size_t count) {
  static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), count);
  return true;
}

// Gives the larger tensors places in the second file.
void place_outside(Graph& graph, const std::string& path) {
  graph.external_file = std::filesystem::path(path).filename().string() + ".data";
  std::size_t end = 0;
  for (Initializer& each : graph.initializers) {
    if (each.bytes.size() <= kSmallTensor) continue;
    end = (end + kAlignment - 1) / kAlignment * kAlignment;
    each.offset = static_cast<std::int64_t>(end);
    end += each.bytes.size();
  }
}

void write_outside(const Graph& graph, train::DurableFile& file) {
  const std::vector<std::byte> zeros(kAlignment);
  std::size_t end = 0;
  for (const Initializer& each : graph.initializers) {
    if (each.offset < 0) continue;
    file.write(std::span(zeros).first(static_cast<std::size_t>(each.offset) - end));
    file.write(each.bytes);
    end = static_cast<std::size_t>(each.offset) + each.bytes.size();
  }
}

}  // namespace

void write_onnx(Graph& graph, const std::string& path, std::uint64_t most_bytes_in_file) {
  static const OnnxWrite kWrite = load_writer(path);  // after a failure the next call tries again
  std::uint64_t bytes = 0;
  for (const Initializer& each : graph.initializers) bytes += each.bytes.size();
  if (bytes > most_bytes_in_file) {
    place_outside(graph, path);
    train::replace_durably("export_onnx", path + ".data",
                           [&](train::DurableFile& file) { write_outside(graph, file); });
  }
  train::replace_durably("export_onnx", path, [&](train::DurableFile& file) {
    Receiver receiver{file, nullptr};
    std::string error;
    if (kWrite(kOnnxVersion, graph, {&receiver, Receiver::append}, {&error, append_text})) return;
    if (receiver.failure) std::rethrow_exception(receiver.failure);
    throw Error("export_onnx: {}: cannot be written: {}", path, error);
  });
}

}  // namespace lockstep::onnx
