#include "src/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::data {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw FileError("{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat info {};
  void* mapping = MAP_FAILED;
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (regular && info.st_size > 0) mapping = mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  const int failure = errno;
  close(fd);
  if (!regular) throw FileError("{}: is no regular file", path);
  if (info.st_size == 0) return;
  if (mapping == MAP_FAILED) throw FileError("{}: cannot be mapped: {}", path, std::strerror(failure));
  data_ = static_cast<const std::uint8_t*>(mapping);
  size_ = static_cast<std::size_t>(info.st_size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::uint8_t*>(data_), size_);
}

}  // namespace lockstep::data
