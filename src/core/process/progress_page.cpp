#include "src/core/process/progress_page.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstring>
#include <new>
#include <string_view>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr const char* kName = "lockstep-progress";

// Returns false if another process that still runs has taken it: that one started this one.
bool take(ProgressPage& page) {
  const pid_t own = ::getpid();
  pid_t writer = 0;
  if (page.writer.compare_exchange_strong(writer, own) || writer == own) return true;
  if (::kill(writer, 0) == 0 || errno != ESRCH || !page.writer.compare_exchange_strong(writer, own)) return false;
  page.resumed_step = page.saved_step = ProgressPage::kNone;
  page.optimizer_steps = 0;
  page.error_bytes = 0;
  return true;
}

// LOCKSTEP_PROGRESS is "/proc/PID/fd/N:I": the I-th page of a file that only lockrun holds. A rank does not inherit the
// descriptor, since programs close those that they do not know and use their numbers for other files. Whatever else is
// found there (lockrun is gone and its number belongs to another process) is left alone.
ProgressPage* find_own() {
  const auto place = env::text(env::kProgress);
  if (!place) return nullptr;
  const std::size_t colon = place->rfind(':');
  if (colon == std::string::npos) return nullptr;
  const std::string path = place->substr(0, colon);
  std::size_t number = 0;
  const char* const end = place->data() + place->size();
  if (std::from_chars(place->data() + colon + 1, end, number).ptr != end) return nullptr;
  char target[PATH_MAX];
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  if (length <= 0 || std::string_view(target, static_cast<std::size_t>(length)).find(kName) == std::string_view::npos)
    return nullptr;
  const Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd || ::lseek(fd.get(), 0, SEEK_END) < static_cast<off_t>((number + 1) * sizeof(ProgressPage))) return nullptr;
  void* const memory =
      ::mmap(nullptr, (number + 1) * sizeof(ProgressPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  ProgressPage* const page = static_cast<ProgressPage*>(memory) + number;
  return take(*page) ? page : nullptr;
}

ProgressPage* own_progress() {
  static ProgressPage* const kOwn = find_own();
  return kOwn;
}

}  // namespace

void note_resumed_step(std::int64_t step) {
  ProgressPage* const own = own_progress();
  if (own == nullptr) return;
  own->resumed_step.store(step, std::memory_order_relaxed);
  own->optimizer_steps.store(0, std::memory_order_relaxed);
}

void note_saved_step(std::int64_t step) {
  if (ProgressPage* const own = own_progress()) own->saved_step.store(step, std::memory_order_relaxed);
}

void note_optimizer_step() {
  if (ProgressPage* const own = own_progress()) own->optimizer_steps.fetch_add(1, std::memory_order_relaxed);
}

void note_error(const char* message) {
  ProgressPage* const own = own_progress();
  if (own == nullptr || own->error_bytes.load(std::memory_order_relaxed) != 0) return;
  std::size_t bytes = std::min(std::strlen(message), sizeof own->error);
  while (bytes > 0 && (message[bytes] & 0xC0) == 0x80) --bytes;  // not within a character
  std::memcpy(own->error, message, bytes);
  own->error_bytes.store(static_cast<std::uint32_t>(bytes), std::memory_order_release);
}

ProgressPages::ProgressPages(int count) : count_(count), fd_(::memfd_create(kName, MFD_CLOEXEC)) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(ProgressPage);
  void* const memory = fd_ && ::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0
                           ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0)
                           : MAP_FAILED;
  if (memory == MAP_FAILED)
    throw Error("launch: cannot make the memory for the progress of {} ranks: {}", count, std::strerror(errno));
  pages_ = static_cast<ProgressPage*>(memory);
  for (int i = 0; i < count_; ++i) new (&pages_[i]) ProgressPage();
}

ProgressPages::~ProgressPages() { ::munmap(pages_, static_cast<std::size_t>(count_) * sizeof(ProgressPage)); }

std::string ProgressPages::error_of(int number) const {
  const ProgressPage& page = of(number);
  const std::size_t bytes = page.error_bytes.load(std::memory_order_acquire);
  return {page.error, std::min(bytes, sizeof page.error)};
}

std::string ProgressPages::place_of(int number) const {
  return fmt::format("/proc/{}/fd/{}:{}", ::getpid(), fd_.get(), number);
}

}  // namespace lockstep
