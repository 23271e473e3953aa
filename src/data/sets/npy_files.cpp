#include <array>
#include <cstring>
#include <fstream>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/data/npy.h"
#include "src/data/formats/mapped_file.h"
#include "src/data/formats/npy.h"

namespace lockstep::data {

namespace {

// A type of .npy files, and the tensor's. Widened: the stored integers are narrower than the tensor's.
struct NpyType {
  const char* name;
  DType dtype;
  std::size_t stored_bytes;
  bool is_signed = false;
};
constexpr std::array kNpyTypes = {
    NpyType{"<f4", DType::kFloat32, 4}, NpyType{"<f8", DType::kFloat64, 8}, NpyType{"<f2", DType::kFloat16, 2},
    NpyType{"|i1", DType::kInt8, 1},    NpyType{"|u1", DType::kUInt8, 1},   NpyType{"|b1", DType::kUInt8, 1},
    NpyType{"<i4", DType::kInt32, 4},   NpyType{"<i8", DType::kInt64, 8},   NpyType{"<i2", DType::kInt32, 2, true},
    NpyType{"<u2", DType::kInt32, 2},   NpyType{"<u4", DType::kInt64, 4},
};

// The array in the bytes of a file.
struct NpyArray {
  NpyType type;
  Shape shape;
  const std::uint8_t* values;
};

NpyArray array_in(std::span<const std::uint8_t> bytes, const std::string& path) {
  const auto refuse = [&](const std::string& why) { throw FileError("{}: {}", path, why); };
  const NpyArrayHeader header = npy_array_header(bytes, refuse);
  std::optional<NpyType> type;
  for (const NpyType& each : kNpyTypes)
    if (header.type == each.name) type = each;
  if (!type)
    throw FileError(
        "{}: holds values of type '{}', expected floats, integers of 8 to 64 bits or bool in little-endian "
        "order: write it with .astype('float32')",
        path, header.type);
  if (header.is_fortran_order)
    throw FileError("{}: is in Fortran's order, expected C's: write it with numpy.ascontiguousarray()", path);
  std::uint64_t expected = type->stored_bytes;
  for (const std::int64_t extent : header.shape)
    if (__builtin_mul_overflow(expected, static_cast<std::uint64_t>(extent), &expected))
      refuse("the header states a size of more than 64 bits: is the file damaged?");
  if (header.shape.size() > Shape::kMaxDims)
    throw FileError("{}: has {} dimensions, expected at most {}", path, header.shape.size(), Shape::kMaxDims);
  if (expected != bytes.size() - header.bytes)
    throw FileError("{}: has {} bytes after its header, which requires {}: is the file truncated or damaged?", path,
                    bytes.size() - header.bytes, expected);
  return {*type, Shape(std::span<const std::int64_t>(header.shape)), bytes.data() + header.bytes};
}

template <typename From, typename To> void widen(const std::uint8_t* from, std::int64_t count, To* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof value), sizeof value);
    to[i] = value;
  }
}

// Elements [begin, begin + count) of the array.
void copy_elements(const NpyArray& array, std::int64_t begin, std::int64_t count, std::byte* to) {
  const std::uint8_t* const from = array.values + static_cast<std::size_t>(begin) * array.type.stored_bytes;
  if (array.type.stored_bytes == size_of(array.type.dtype))
    std::memcpy(to, from, static_cast<std::size_t>(count) * array.type.stored_bytes);
  else if (array.type.stored_bytes == 4)
    widen<std::uint32_t>(from, count, reinterpret_cast<std::int64_t*>(to));
  else if (array.type.is_signed)
    widen<std::int16_t>(from, count, reinterpret_cast<std::int32_t*>(to));
  else
    widen<std::uint16_t>(from, count, reinterpret_cast<std::int32_t*>(to));
}

Shape row_shape(const Shape& shape) {
  std::vector<std::int64_t> extents;
  for (std::size_t dim = 1; dim < shape.dims(); ++dim) extents.push_back(shape[dim]);
  return Shape(std::span<const std::int64_t>(extents));
}

}  // namespace

Tensor read_npy(const std::string& path, std::uint64_t max_bytes) {
  const std::vector<std::uint8_t> bytes = read_file(path, max_bytes);
  const NpyArray array = array_in(bytes, path);
  const Tensor tensor = Tensor::empty(array.shape, array.type.dtype, cpu_device());
  if (tensor.count() > 0) copy_elements(array, 0, tensor.count(), tensor.buffer().data());
  return tensor;
}

void write_npy(const std::string& path, const Tensor& tensor) {
  if (!tensor.defined() || tensor.device().kind() != DeviceKind::kCpu || tensor.dtype() == DType::kBFloat16)
    throw InvalidArgument("write_npy: {}: expected a CPU tensor of a type that NumPy has, got {}", path,
                          tensor.defined() ? fmt::format("{} on {}", name_of(tensor.dtype()), tensor.device().name())
                                           : "an undefined tensor");
  std::string type;
  for (const NpyType& each : kNpyTypes)
    if (each.dtype == tensor.dtype() && type.empty()) type = each.name;
  std::vector<std::int64_t> extents;
  for (std::size_t dim = 0; dim < tensor.shape().dims(); ++dim) extents.push_back(tensor.shape()[dim]);
  const std::string header = npy_header_text(type, std::span<const std::int64_t>(extents));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(reinterpret_cast<const char*>(tensor.buffer().data()), static_cast<std::streamsize>(tensor.bytes()));
  file.close();
  if (!file) throw FileError("{}: cannot be written: does its folder exist, and is there space?", path);
}

struct NpyDataset::Arrays {
  std::vector<MappedFile> files;
  std::vector<NpyArray> arrays;
  std::vector<Shape> rows;
};

NpyDataset::NpyDataset(const std::vector<std::string>& paths) {
  if (paths.empty()) throw InvalidArgument("NpyDataset: got an empty list of files");
  const auto arrays = std::make_shared<Arrays>();
  for (const std::string& path : paths) {
    arrays->files.emplace_back(path);
    const NpyArray& array = arrays->arrays.emplace_back(array_in(arrays->files.back().bytes(), path));
    if (array.shape.dims() == 0) throw FileError("{}: has a single value, expected an array of rows", path);
    if (array.shape[0] != arrays->arrays[0].shape[0])
      throw FileError("{}: has {} rows, and {} has {}", path, array.shape[0], paths[0], arrays->arrays[0].shape[0]);
    arrays->rows.push_back(row_shape(array.shape));
  }
  arrays_ = arrays;
}

std::int64_t NpyDataset::size() const { return arrays_->arrays[0].shape[0]; }

std::vector<TensorSpec> NpyDataset::element_spec() const {
  std::vector<TensorSpec> spec;
  for (std::size_t i = 0; i < arrays_->arrays.size(); ++i)
    spec.push_back({arrays_->rows[i], arrays_->arrays[i].type.dtype});
  return spec;
}

void NpyDataset::read(std::int64_t index, std::int64_t, const Row& row) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("NpyDataset: sample {} does not exist; the set has {}", index, size());
  for (std::size_t i = 0; i < arrays_->arrays.size(); ++i) {
    const std::int64_t count = arrays_->rows[i].count();
    if (count > 0) copy_elements(arrays_->arrays[i], index * count, count, row.bytes(i).data());
  }
}

}  // namespace lockstep::data
