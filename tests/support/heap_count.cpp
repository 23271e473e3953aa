// Replaces every form of operator new and delete: a sanitizer defines the forms that are omitted, and memory from one
// would be freed by the other.
#include "tests/support/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> of_program{0};
thread_local std::size_t of_thread = 0, bytes_of_thread = 0;
thread_local std::size_t refused_from = 0;

void* counted(std::size_t bytes, std::size_t alignment) noexcept {
  of_program.fetch_add(1, std::memory_order_relaxed);
  ++of_thread;
  bytes_of_thread += bytes;
  if (refused_from != 0 && bytes >= refused_from) return nullptr;
  const std::size_t whole = (bytes + alignment) / alignment * alignment;  // a multiple that is not zero
  return alignment <= alignof(std::max_align_t) ? std::malloc(whole) : std::aligned_alloc(alignment, whole);
}

void* counted_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* memory = counted(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

constexpr std::size_t kPlain = alignof(std::max_align_t);

}  // namespace

// Not inlined: the compiler would see a free() of memory from new, and warn.
#define LOCKSTEP_REPLACES [[gnu::noinline]]
LOCKSTEP_REPLACES void* operator new(std::size_t n) { return counted_or_throw(n, kPlain); }
LOCKSTEP_REPLACES void* operator new[](std::size_t n) { return counted_or_throw(n, kPlain); }
LOCKSTEP_REPLACES void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return counted(n, kPlain); }
LOCKSTEP_REPLACES void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return counted(n, kPlain); }
LOCKSTEP_REPLACES void* operator new(std::size_t n, std::align_val_t a) {
  return counted_or_throw(n, static_cast<std::size_t>(a));
}
LOCKSTEP_REPLACES void* operator new[](std::size_t n, std::align_val_t a) {
  return counted_or_throw(n, static_cast<std::size_t>(a));
}
LOCKSTEP_REPLACES void operator delete(void* p) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete[](void* p) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete(void* p, std::size_t) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
LOCKSTEP_REPLACES void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace lockstep::test_support {

std::size_t heap_allocations() { return of_program.load(std::memory_order_relaxed); }
std::size_t heap_allocations_by_thread() { return of_thread; }
std::size_t heap_bytes_by_thread() { return bytes_of_thread; }
void refuse_allocations_from(std::size_t bytes) { refused_from = bytes; }

}  // namespace lockstep::test_support
