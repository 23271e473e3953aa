// A block of memory with its owner: copyable handle, the last one frees.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#pragma GCC visibility push(default)
namespace lockstep {

class Device;

// Memory of one device (or shared memory that a communication backend registered). A Buffer may be a window into a
// larger one and then keeps it alive. Not thread-safe as an object; the bytes are the user's to guard.
class Buffer {
 public:
  Buffer() = default;

  // Takes `data` over; `release` runs when the last handle goes.
  Buffer(std::byte* data, std::size_t bytes, Device* device, std::function<void()> release)
      : data_(data),
        bytes_(bytes),
        device_(device),
        owner_(data, [release = std::move(release)](std::byte*) { release(); }) {}

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device* device() const { return device_; }
  explicit operator bool() const { return data_ != nullptr; }
  long use_count() const { return owner_.use_count(); }  // handles of this memory, windows included

  // A window that shares ownership. Offsets and sizes in bytes; must lie inside.
  Buffer window(std::size_t offset, std::size_t bytes) const {
    Buffer part = *this;
    part.data_ += offset;
    part.bytes_ = bytes;
    return part;
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device* device_ = nullptr;
  std::shared_ptr<std::byte> owner_;
};

}  // namespace lockstep
#pragma GCC visibility pop
