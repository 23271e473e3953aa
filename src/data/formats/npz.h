// Arrays in NumPy's .npz files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

class NpzFile {
 public:
  // Throws FileError as read_file() does.
  NpzFile(const std::string& path, std::uint64_t max_bytes);

  // A one-dimensional array of int64 or int32 numbers.
  std::vector<std::int64_t> numbers(const std::string& name) const;
  // A one-dimensional array of objects, each a list of integers, which NumPy has pickled.
  std::vector<std::vector<std::int64_t>> lists(const std::string& name) const;

 private:
  struct Array {
    std::string type;  // "<i8", "|O"
    std::size_t count = 0;
    std::vector<std::uint8_t> values;
  };
  // Both throw FileError with the path, the array and what its header says.
  Array array(const std::string& name) const;
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const;

  std::string path_;
  std::uint64_t max_bytes_;
  std::vector<std::uint8_t> archive_;
};

}  // namespace lockstep::data
