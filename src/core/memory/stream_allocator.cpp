#include "src/core/memory/stream_allocator.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr std::size_t kUnit = 512;  // sizes are rounded up to it, as the driver does
// Not allocated by "all", because CUDA, NCCL and cuDNN need memory, too.
constexpr std::size_t kLeftToLibraries = std::size_t{512} << 20;

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

StreamAllocator::StreamAllocator(Device& device, MemoryPool& pool, const MemoryPolicy& policy)
    : device_(device), pool_(pool), policy_(policy), device_bytes_(pool.size_of_device()) {
  if (policy_.kind != MemoryPolicy::Kind::kAll) return;
  const std::size_t free = pool_.free_on_device();
  if (policy_.bytes == 0) policy_.bytes = free > 2 * kLeftToLibraries ? free - kLeftToLibraries : free / 2;
  // For more than the device has, CUDA reports other errors.
  std::byte* const block = policy_.bytes <= device_bytes_ ? pool_.take(policy_.bytes) : nullptr;
  if (block == nullptr)
    throw Error(
        "{}: {:.0f} MiB were to be allocated at the start, but only {:.0f} of its {:.0f} MiB are free: end other "
        "programs that use "
        "it, or request less",
        device_.name(), mib(policy_.bytes), mib(free), mib(device_bytes_));
  pool_.give_back(block, policy_.bytes);  // the pool keeps it
  stats_.system_allocations = 1;
  stats_.bytes_held = pool_.held();
}

StreamAllocator::~StreamAllocator() { empty_kept(); }

// The memory of one capture. Blocks move between the arena and the buffers of the capture's thread; all are freed at
// the end.
class StreamAllocator::Arena {
 public:
  explicit Arena(StreamAllocator& allocator) : allocator_(allocator) {}
  ~Arena() {
    const std::lock_guard lock(allocator_.mutex_);
    allocator_.arenas_.erase(this);
    for (const Block& each : blocks_) allocator_.release_now_or_later(each.order, each.block, each.bytes);
  }

  void put(Stream* order, std::byte* block, std::size_t bytes) {
    const std::lock_guard lock(allocator_.mutex_);
    free_[order].emplace(bytes, block);
  }
  // The members below are called with the allocator's mutex held.
  std::byte* take(Stream* order, std::size_t rounded, std::size_t asked) {
    auto& free = free_[order];
    if (const auto found = free.find(rounded); found != free.end()) {
      std::byte* const block = found->second;
      free.erase(found);
      ++allocator_.stats_.cache_hits;
      return block;
    }
    // A graph is launched on the default stream, so its blocks are free in the order of that stream when the graph is
    // destroyed.
    blocks_.push_back({nullptr, allocator_.take(order, rounded, asked), rounded});
    return blocks_.back().block;
  }
  void keep(Stream* order, std::byte* block, std::size_t bytes) { blocks_.push_back({order, block, bytes}); }
  void forget(Stream& stream) {
    for (Block& each : blocks_)
      if (each.order == &stream) each.order = nullptr;
    free_.erase(&stream);  // another stream may get the same address
  }

 private:
  struct Block {
    Stream* order;
    std::byte* block;
    std::size_t bytes;
  };
  StreamAllocator& allocator_;
  std::vector<Block> blocks_;
  std::map<Stream*, std::multimap<std::size_t, std::byte*>> free_;
};

Buffer StreamAllocator::allocate_on(Stream& stream, std::size_t bytes) {
  return allocate_for(&stream == &device_.default_stream() ? nullptr : &stream, bytes);
}

Buffer StreamAllocator::allocate_for(Stream* order, std::size_t bytes) {
  const std::size_t rounded = std::max<std::size_t>(1, (bytes + kUnit - 1) / kUnit) * kUnit;
  const std::lock_guard lock(mutex_);
  if (rounded < bytes) report_exhausted(bytes);
  if (arena_ && capturing_ == std::this_thread::get_id()) {
    std::byte* const block = arena_->take(order, rounded, bytes);
    return Buffer(block, bytes, &device_,
                  [arena = arena_, order, block, rounded] { arena->put(order, block, rounded); });
  }
  std::byte* const block = take(order, rounded, bytes);
  return Buffer(block, bytes, &device_, [this, order, block, rounded] { release(order, block, rounded); });
}

void StreamAllocator::forget(Stream& stream) noexcept {
  const std::lock_guard lock(mutex_);
  for (Arena* const each : arenas_) each->forget(stream);
  const auto found = kept_.find(&stream);
  if (found == kept_.end()) return;
  give_back(&stream, found->second);
  kept_.erase(found);
}

std::byte* StreamAllocator::take(Stream* order, std::size_t rounded, std::size_t asked) {
  const bool within = policy_.kind == MemoryPolicy::Kind::kGrow ||
                      (rounded <= policy_.bytes && stats_.bytes_in_use <= policy_.bytes - rounded);
  std::byte* block = within ? take_kept(order, rounded) : nullptr;
  if (block != nullptr) {
    ++stats_.cache_hits;
  } else {
    if (within && rounded <= device_bytes_)
      block = take_from_pool(order, rounded);  // CUDA has other errors for more than there is
    if (block == nullptr) report_exhausted(asked);
    const std::size_t held = pool_.held();
    ++(held > stats_.bytes_held ? stats_.system_allocations : stats_.cache_hits);
    stats_.bytes_held = held;
  }
  stats_.bytes_in_use += rounded;
  peak_bytes_ = std::max(peak_bytes_, stats_.bytes_in_use);
  return block;
}

std::byte* StreamAllocator::take_kept(Stream* order, std::size_t rounded) {
  std::vector<std::byte*>& blocks = kept_[order][rounded];
  if (blocks.empty()) return nullptr;
  std::byte* const block = blocks.back();
  blocks.pop_back();
  kept_bytes_ -= rounded;
  return block;
}

std::byte* StreamAllocator::take_from_pool(Stream* order, std::size_t rounded) {
  if (arena_) return pool_.take_apart(rounded);
  const std::size_t in_hand = stats_.bytes_in_use + kept_bytes_;
  const bool at_limit = policy_.kind != MemoryPolicy::Kind::kGrow && in_hand > policy_.bytes - rounded;
  if (at_limit || kept_bytes_ / 2 > peak_bytes_) empty_kept();
  std::byte* block = take_in_order(order, rounded);
  if (block != nullptr) return block;
  if (kept_bytes_ > 0) {
    empty_kept();
    block = take_in_order(order, rounded);
  }
  if (block != nullptr) return block;
  pool_.settle(policy_.kind == MemoryPolicy::Kind::kAll
                   ? policy_.bytes
                   : 0);  // memory that was allocated at the start stays with this process
  return take_in_order(order, rounded);
}

void StreamAllocator::give_back(Stream* order, Kept& kept) noexcept {
  for (const auto& [bytes, blocks] : kept)
    for (std::byte* const block : blocks) {
      order != nullptr ? pool_.give_back_on(*order, block, bytes) : pool_.give_back(block, bytes);
      kept_bytes_ -= bytes;
    }
  kept.clear();
}

void StreamAllocator::empty_kept() noexcept {
  for (auto& [order, kept] : kept_) give_back(order, kept);
}

void StreamAllocator::release(Stream* order, std::byte* block, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  release_now_or_later(order, block, bytes);
}

void StreamAllocator::release_now_or_later(Stream* order, std::byte* block, std::size_t bytes) {
  if (arena_) return arena_->keep(order, block, bytes);
  kept_[order][bytes].push_back(block);
  kept_bytes_ += bytes;
  stats_.bytes_in_use -= bytes;
}

void StreamAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  if (arena_) return;
  empty_kept();
  pool_.settle(policy_.kind == MemoryPolicy::Kind::kAll ? policy_.bytes : 0);
  stats_.bytes_held = pool_.held();
}

void StreamAllocator::begin_capture() {
  const std::lock_guard lock(mutex_);
  if (arena_) throw InvalidArgument("{}: a graph is being recorded already: one at a time", device_.name());
  empty_kept();  // until the end of the capture it could not be returned, whatever is short
  arena_ = std::make_shared<Arena>(*this);
  arenas_.insert(arena_.get());
  capturing_ = std::this_thread::get_id();
}

std::shared_ptr<void> StreamAllocator::end_capture() {
  const std::lock_guard lock(mutex_);
  return std::exchange(arena_, nullptr);
}

AllocatorStats StreamAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void StreamAllocator::report_exhausted(std::size_t bytes) const {
  const std::string limit =
      policy_.kind == MemoryPolicy::Kind::kGrow ? "" : fmt::format(", of at most {:.1f}", mib(policy_.bytes));
  throw Error(
      "{}: out of memory: {:.1f} MiB requested; this process uses {:.1f} MiB{} and holds {:.1f}; {:.1f} of the "
      "device's "
      "{:.1f} MiB are free. "
      "Use a "
      "smaller batch, or end other programs that use the device",
      device_.name(), mib(bytes), mib(stats_.bytes_in_use), limit, mib(stats_.bytes_held), mib(pool_.free_on_device()),
      mib(device_bytes_));
}

}  // namespace lockstep
