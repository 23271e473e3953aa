#include "src/comm/host/shm/registered_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "lockstep/core/device.h"

namespace lockstep::host {

std::size_t RegisteredMemory::stride_of(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  return std::max<std::size_t>(kPage, (bytes + kPage - 1) / kPage * kPage);
}

Buffer RegisteredMemory::add(const std::shared_ptr<RegisteredMemory>& self, std::shared_ptr<SharedSegment> segment,
                             std::size_t bytes) {
  const std::size_t stride = stride_of(bytes);
  std::byte* base = segment->data();
  std::byte* begin = base + static_cast<std::size_t>(self->rank_) * stride;
  for (std::size_t at = 0; at < stride; at += 4096)
    // Allocates the page on the NUMA node of the rank that will use it most.
    static_cast<volatile std::byte*>(begin)[at] = std::byte{0};
  const std::lock_guard lock(self->mutex_);
  const Entry entry{++self->last_number_, base, begin, bytes, stride};
  const auto place =
      std::lower_bound(self->entries_.begin(), self->entries_.end(), begin,
                       [](const Entry& other, const std::byte* address) { return other.begin < address; });
  self->entries_.insert(place, entry);
  // The entry is removed before the mapping: an address that is mapped again must not be found here.
  return Buffer(begin, bytes, &cpu_device(),
                [self, segment = std::move(segment), number = entry.number] { self->remove(number); });
}

void RegisteredMemory::remove(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) { return entry.number == number; });
}

RegisteredMemory::Found RegisteredMemory::find(const void* data, std::size_t bytes) const {
  const auto* address = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto after = std::upper_bound(entries_.begin(), entries_.end(), address,
                                [](const std::byte* value, const Entry& entry) { return value < entry.begin; });
  if (after == entries_.begin()) return {};
  const Entry& entry = *--after;
  const auto offset = static_cast<std::size_t>(address - entry.begin);
  if (offset > entry.bytes || bytes > entry.bytes - offset) return {};
  return {{entry.number, offset}, entry.base, entry.stride, entry.bytes};
}

void RegisteredMemory::Found::refuse(int rank, std::uint64_t offset, std::size_t bytes) const {
  // Not an Error, since only this rank has seen it; the backend ends the group for all.
  throw std::runtime_error(fmt::format(
      "rank {} published a range of {} bytes at offset {} of registered memory of {} bytes: its message is damaged",
      rank, bytes, offset, part_bytes));
}

}  // namespace lockstep::host
