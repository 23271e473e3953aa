#include "src/comm/call/unregistered_memory.h"

#include <cstdint>
#include <cstring>

#include "lockstep/core/device.h"

namespace lockstep {

Buffer allocate_unregistered(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const Buffer whole = cpu_device().allocate(bytes + kPage - 1);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(whole.data()) % kPage;
  Buffer buffer = whole.window(past == 0 ? 0 : kPage - past, bytes);
  std::memset(buffer.data(), 0, bytes);
  return buffer;
}

}  // namespace lockstep
