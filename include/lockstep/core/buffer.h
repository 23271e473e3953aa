// A block of memory with shared ownership: handles are copyable, and the last one frees the memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#pragma GCC visibility push(default)
namespace lockstep {

class Device;

// Memory of one device, or shared memory that a communication backend registered. A Buffer may be a window into a
// larger one, which it then keeps alive. The object is not thread-safe, and access to the bytes is the user's to
// synchronise.
class Buffer {
 public:
  Buffer() = default;

  // Takes ownership of `data`; `release` runs when the last handle is destroyed.
  Buffer(std::byte* data, std::size_t bytes, Device* device, std::function<void()> release)
      : data_(data),
        bytes_(bytes),
        device_(device),
        owner_(data, [release = std::move(release)](std::byte*) { release(); }) {}

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device* device() const { return device_; }
  explicit operator bool() const { return data_ != nullptr; }
  long use_count() const { return owner_.use_count(); }  // number of handles of this memory, including windows

  // A part of this memory that shares its ownership. Offset and size are in bytes and must lie inside.
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
