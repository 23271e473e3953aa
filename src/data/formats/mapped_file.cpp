#include "src/data/formats/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "src/core/process/regular_file.h"

namespace lockstep::data {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const RegularFile file = open_regular_file(path);
  if (file.bytes == 0) return;
  void* const mapping = mmap(nullptr, file.bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  if (mapping == MAP_FAILED) throw FileError("{}: cannot be mapped: {}", path, std::strerror(errno));
  data_ = static_cast<const std::uint8_t*>(mapping);
  size_ = file.bytes;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::uint8_t*>(data_), size_);
}

}  // namespace lockstep::data
