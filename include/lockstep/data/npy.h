// NumPy's .npy files: one array each (numpy/lib/format.py describes them).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// Reads an array into a CPU tensor of its shape. Types: float16, float32, float64, int8, uint8, int32, int64; bool
// becomes uint8; int16, uint16 become int32, and uint32 int64. Throws FileError with the path for other types (also
// those in big-endian order), for an array in Fortran's order, one of more than six dimensions or another size than its
// header requires, for a file that is not .npy, and where read_file() does.
Tensor read_npy(const std::string& path, std::uint64_t max_bytes = kMaxFileBytes);
// Writes a CPU tensor in C's order; bfloat16, which NumPy does not have, throws InvalidArgument. Throws FileError if
// the file cannot be written.
void write_npy(const std::string& path, const Tensor& tensor);

// Files whose arrays have the same number of rows, N: sample i is row i of each, with the types of read_npy(). The
// files are mapped, not read, so they may be larger than the memory; they must not change meanwhile. Copies share the
// mappings.
class NpyDataset : public FixedShapeDataset {
 public:
  // Throws FileError where read_npy() does, and for an array without dimensions and another number of rows than the
  // first one; InvalidArgument for an empty list.
  explicit NpyDataset(const std::vector<std::string>& paths);
  std::int64_t size() const override;
  std::vector<TensorSpec> element_spec() const override;
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

 private:
  struct Arrays;
  std::shared_ptr<const Arrays> arrays_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
