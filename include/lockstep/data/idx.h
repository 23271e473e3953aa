// IDX: arrays in big-endian binary, the format of MNIST and Fashion-MNIST (LeCun, Cortes and Burges, "The MNIST
// database").
//
// A file has two zero bytes, one for the type, one for the number of extents, four for each extent, then the elements
// in row-major order.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// Reads the array of a plain or gzip file into a CPU tensor. Types: uint8, int8, int32, float32, float64; int16 becomes
// int32. Throws FileError with the file's name when it is not IDX, has more than six extents or another size than its
// extents require, and where read_file() does.
Tensor read_idx(const std::string& path, std::uint64_t max_bytes = kMaxFileBytes);

struct MnistOptions {
  bool train = true;  // train-*, else t10k-*
};

// MNIST, or a set in the same files (Fashion-MNIST). Samples are {(28, 28, 1) float32 in 0..1, () int64}. Copies share
// the images.
class Mnist : public FixedShapeDataset {
 public:
  // Reads {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte, with or without .gz, from `folder`. Throws FileError
  // where read_idx() does, and when the files do not hold images, or hold different numbers of images and labels.
  explicit Mnist(const std::string& folder, const MnistOptions& options = {});
  std::int64_t size() const override { return labels_.count(); }
  std::vector<TensorSpec> element_spec() const override;
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  Tensor images_, labels_;  // (N, rows, columns) and (N), uint8
};

}  // namespace lockstep::data
#pragma GCC visibility pop
