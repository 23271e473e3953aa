#include "src/comm/host/machine/thread_memory_provider.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::host {

namespace {

class PrivateSegment : public SharedSegment {
 public:
  explicit PrivateSegment(std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Error("backend host: cannot map {} bytes: {}", bytes, std::strerror(errno));
    data_ = static_cast<std::byte*>(memory);
  }
  ~PrivateSegment() override { munmap(data_, bytes_); }
  std::byte* data() const override { return data_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace

std::shared_ptr<SharedSegment> map_private_segment(std::size_t bytes) {
  return std::make_shared<PrivateSegment>(bytes);
}

std::shared_ptr<SharedSegment> ThreadRendezvous::segment(std::size_t index, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (index == segments_.size()) segments_.push_back(map_private_segment(bytes));
  return segments_.at(index);
}

std::shared_ptr<SharedSegment> ThreadMemoryProvider::share(std::size_t bytes, std::chrono::milliseconds) {
  return rendezvous_->segment(calls_++, bytes);
}

}  // namespace lockstep::host
