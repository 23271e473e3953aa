#include "lockstep/data/idx.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "lockstep/core/error.h"
#include "src/core/process/file_kind.h"

namespace lockstep::data {

namespace {

struct IdxType {
  DType dtype;
  std::size_t stored_bytes;
};

std::optional<IdxType> idx_type(std::uint8_t code) {
  switch (code) {
    case 0x08: return IdxType{DType::kUInt8, 1};
    case 0x09: return IdxType{DType::kInt8, 1};
    case 0x0b: return IdxType{DType::kInt32, 2};
    case 0x0c: return IdxType{DType::kInt32, 4};
    case 0x0d: return IdxType{DType::kFloat32, 4};
    case 0x0e: return IdxType{DType::kFloat64, 8};
  }
  return std::nullopt;
}

std::uint64_t big_endian(const std::uint8_t* bytes, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value = value << 8 | bytes[i];
  return value;
}

void convert(std::span<const std::uint8_t> from, const IdxType& type, std::byte* to) {
  if (type.stored_bytes == 1) {
    std::copy_n(reinterpret_cast<const std::byte*>(from.data()), from.size(), to);
    return;
  }
  const std::size_t size = size_of(type.dtype);
  for (std::size_t at = 0; at < from.size(); at += type.stored_bytes, to += size) {
    const std::uint64_t bits = big_endian(from.data() + at, type.stored_bytes);
    if (type.stored_bytes == 8) {
      std::memcpy(to, &bits, 8);
    } else {
      const auto word = type.stored_bytes == 2 ? static_cast<std::uint32_t>(static_cast<std::int16_t>(bits))
                                               : static_cast<std::uint32_t>(bits);
      std::memcpy(to, &word, 4);
    }
  }
}

// Finds "train-images-idx3-ubyte", or "train-images.idx3-ubyte" as some archives unpack it, each with or without .gz.
// Returns the first that exists, else the published name.
std::string file_of(const std::string& folder, const std::string& part, const char* kind) {
  const std::filesystem::path published = std::filesystem::path(folder) / (part + "-" + kind + ".gz");
  for (const char* separator : {"-", "."})
    for (const char* ending : {"", ".gz"}) {
      const auto candidate = std::filesystem::path(folder) / (part + separator + kind + ending);
      std::error_code failure;
      if (std::filesystem::exists(candidate, failure)) return candidate.string();
    }
  return published.string();
}

Shape shape_of(const std::vector<std::int64_t>& extents, const std::string& path) {
  try {
    return Shape(std::span<const std::int64_t>(extents));
  } catch (const InvalidArgument& error) {
    throw FileError("{}: the header is damaged: {}", path, error.what());
  }
}

}  // namespace

Tensor read_idx(const std::string& path, std::uint64_t max_bytes) {
  const std::vector<std::uint8_t> bytes = read_file(path, max_bytes);
  const std::optional<IdxType> type =
      bytes.size() >= 4 && bytes[0] == 0 && bytes[1] == 0 ? idx_type(bytes[2]) : std::nullopt;
  if (!type)
    throw FileError("{}: is not an IDX file: it does not begin with two zero bytes and the code of a type.{}", path,
                    mistaken_download(std::as_bytes(std::span(bytes))));
  const std::size_t dims = bytes[3], header = 4 + 4 * dims;
  if (dims < 1 || dims > Shape::kMaxDims)
    throw FileError("{}: has {} extents, expected 1 to {}: is the file damaged?", path, dims, Shape::kMaxDims);
  if (bytes.size() < header)
    throw FileError("{}: {} bytes, but the header alone has {}: is the file truncated?", path, bytes.size(), header);
  std::vector<std::int64_t> extents;
  std::uint64_t expected = type->stored_bytes;
  bool overflow = false;
  for (std::size_t i = 0; i < dims; ++i) {
    extents.push_back(static_cast<std::int64_t>(big_endian(bytes.data() + 4 + 4 * i, 4)));
    overflow = __builtin_mul_overflow(expected, static_cast<std::uint64_t>(extents.back()), &expected) || overflow;
  }
  if (overflow || expected != bytes.size() - header)
    throw FileError("{}: has {} bytes after its header, but its extents require {}: is the file truncated or damaged?",
                    path, bytes.size() - header, overflow ? "more than 64 bits count" : std::to_string(expected));
  const Tensor tensor = Tensor::empty(shape_of(extents, path), type->dtype, cpu_device());
  convert(std::span(bytes).subspan(header), *type, tensor.buffer().data());
  return tensor;
}

Mnist::Mnist(const std::string& folder, const MnistOptions& options) {
  const std::string part = options.train ? "train" : "t10k";
  const std::string images = file_of(folder, part + "-images", "idx3-ubyte"),
                    labels = file_of(folder, part + "-labels", "idx1-ubyte");
  images_ = read_idx(images);
  labels_ = read_idx(labels);
  if (images_.dtype() != DType::kUInt8 || images_.shape().dims() != 3)
    throw FileError("{}: holds {} {}, expected images (N, rows, columns) uint8", images, name_of(images_.dtype()),
                    images_.shape().text());
  if (labels_.dtype() != DType::kUInt8 || labels_.shape().dims() != 1 || labels_.count() != images_.shape()[0])
    throw FileError("{}: holds {} {}, expected one uint8 for each of {} images", labels, name_of(labels_.dtype()),
                    labels_.shape().text(), images_.shape()[0]);
}

std::vector<TensorSpec> Mnist::element_spec() const {
  return {{{images_.shape()[1], images_.shape()[2], 1}, DType::kFloat32}, {Shape(), DType::kInt64}};
}

void Mnist::read(std::int64_t index, std::int64_t, const Row& row) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("Mnist: sample {} does not exist; the set has {}", index, size());
  const auto to = row.span<float>(0);
  const std::uint8_t* const from = images_.data<std::uint8_t>() + static_cast<std::size_t>(index) * to.size();
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<float>(from[i]) / 255.f;
  row.value<std::int64_t>(1) = labels_.data<std::uint8_t>()[index];
}

}  // namespace lockstep::data
