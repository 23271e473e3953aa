// IDX: arrays in big-endian binary, the format of MNIST and Fashion-MNIST (LeCun, Cortes and Burges, "The MNIST
// database").
//
// Two zero bytes, one for the type, one for the number of extents, each extent in four bytes, the elements in row-major
// order.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// The array of a file, plain or gzip, on the CPU. Types: uint8, int8, int32, float32, float64; int16 becomes int32.
// Throws FileError naming the file: no IDX, more than six extents, fewer or more bytes than its extents say, and as
// read_file().
Tensor read_idx(const std::string& path, std::uint64_t max_bytes = kMaxFileBytes);

struct MnistOptions {
  bool train = true;  // train-*, else t10k-*
};

// MNIST, or a set in its files (Fashion-MNIST): samples are {(28, 28, 1) float32 of 0 to 1, () int64}. Copies share the
// images.
class Mnist : public FixedShapeDataset {
 public:
  // Reads {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte, or these with .gz, of `folder`. Throws FileError: as
  // read_idx(), images that are none, or another number of labels than images.
  explicit Mnist(const std::string& folder, const MnistOptions& options = {});
  std::int64_t size() const override { return labels_.count(); }
  std::vector<TensorSpec> element_spec() const override;
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  Tensor images_, labels_;  // (N, rows, columns) and (N), uint8
};

}  // namespace lockstep::data
#pragma GCC visibility pop
