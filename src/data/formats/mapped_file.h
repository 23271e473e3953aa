// A file mapped read-only into memory for the lifetime of the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lockstep::data {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws FileError with the path
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lockstep::data
