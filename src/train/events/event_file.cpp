#include "src/train/events/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/comm/net/host_names.h"
#include "src/core/base/digits.h"

namespace lockstep::train::events {

namespace {

constexpr std::uint32_t kCastagnoli = 0x82f63b78;  // the polynomial with reversed bits

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    table[byte] = byte;
    for (int bit = 0; bit < 8; ++bit) table[byte] = (table[byte] >> 1) ^ ((table[byte] & 1) != 0 ? kCastagnoli : 0);
  }
  return table;
}

void append_little_endian(std::string& out, std::uint64_t bits, int bytes) {
  for (; bytes > 0; --bytes, bits >>= 8) out += static_cast<char>(bits);
}

// Event.session_log; with it a reader of "brain.Event:2" drops this step and later ones that it already has.
Message restart_event(double now, std::int64_t step) {
  constexpr int kWallTime = 1, kStep = 2, kSessionLog = 7, kStatus = 1;
  constexpr std::int64_t kStart = 1;
  return Message().real(kWallTime, now).integer(kStep, step).message(kSessionLog, Message().integer(kStatus, kStart));
}

// Returns a time whose file name sorts after the folder's newest file, which another machine's clock may have named,
// because readers take the files in the order of their names.
double after_others(const std::string& folder, double now) {
  constexpr std::string_view kPrefix = "events.out.tfevents.";
  constexpr std::size_t kDigits = 10;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kPrefix, 0) != 0 || name.size() <= kPrefix.size() + kDigits || name[kPrefix.size() + kDigits] != '.')
      continue;
    const std::string seconds = name.substr(kPrefix.size(), kDigits);
    if (is_digits(seconds)) now = std::max(now, std::stod(seconds) + 1);
  }
  return now;
}

Message version_event(double now) { return Message().real(1, now).text(3, "brain.Event:2"); }

void make_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(folder, error);
  std::error_code ignored;  // from a folder that may not be entered; `error` has the reason
  if (fs::is_directory(folder, ignored)) return;
  const std::string cause = fs::exists(folder, ignored) ? "a file has this name" : error.message();
  throw FileError(
      "SummaryWriter: {}: the folder cannot be created: {}: choose a log_dir that this process may create and "
      "write to",
      folder, cause);
}

// A name of this second that already exists belongs to another process with the same pid and host name, as in
// containers. The next number is used then.
Fd open_event_file(const std::string& folder, double now, const std::string& name, std::string& path) {
  constexpr int kTries = 100;
  Fd fd;
  for (int i = 0; i < (name.empty() ? kTries : 1); ++i) {
    path = (std::filesystem::path(folder) / (name.empty() ? event_file_name(now) : name)).string();
    fd = Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (fd || errno != EEXIST) return fd;
  }
  return fd;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = ~0u;
  for (const char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xa282ead8u; }

std::string record_of(const Message& event) {
  std::string record;
  append_little_endian(record, event.data().size(), 8);
  append_little_endian(record, masked_crc32c(record), 4);
  record += event.data();
  append_little_endian(record, masked_crc32c(event.data()), 4);
  return record;
}

std::string event_file_name(double seconds) {
  static std::atomic<int> count = 0;
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<std::int64_t>(seconds), host_name(), getpid(),
                     count++);
}

EventFile::EventFile(const std::string& folder, double now, const EventFileOptions& options)
    : options_(options), last_flush_(now) {
  make_folder(folder);
  fd_ = open_event_file(folder, options.purge_step ? after_others(folder, now) : now, options.name, path_);
  if (!fd_)
    throw FileError(
        "SummaryWriter: {}: the event file cannot be created: {}: choose a log_dir that this process may write to, "
        "with space left",
        path_, std::strerror(errno));
  buffered_ = record_of(version_event(now));
  if (options.purge_step) buffered_ += record_of(restart_event(now, *options.purge_step));
  try {
    write_buffered();
  } catch (...) {
    unlink(path_.c_str());
    throw;
  }
}

EventFile::~EventFile() {
  try {
    close();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  }
}

void EventFile::fail(const char* what, int error, const std::string& remedy) const {
  throw FileError("SummaryWriter: {}: {}: {}: {}", path_, what, std::strerror(error), remedy);
}

void EventFile::add(double now, std::span<const Message> events) {
  if (!fd_) throw InvalidArgument("SummaryWriter: {}: the writer is closed: make a new one to add more", path_);
  for (const Message& event : events) buffered_ += record_of(event);
  records_buffered_ += static_cast<int>(events.size());
  const bool is_due =
      !(now >= last_flush_ && now < last_flush_ + options_.flush_seconds);  // also when the clock was set back
  if (records_buffered_ < options_.max_queue && !is_due) return;
  last_flush_ = now;
  flush();
}

// Each record has a fixed place in the file, so the next write overwrites an incomplete one.
void EventFile::write_buffered() {
  std::size_t done = 0;
  while (done < buffered_.size()) {
    const ssize_t written =
        pwrite(fd_.get(), buffered_.data() + done, buffered_.size() - done, static_cast<off_t>(written_ + done));
    if (written < 0 && errno != EINTR)
      fail("cannot be written", errno,
           fmt::format("make room on the disk, or write to another log_dir; {} records are buffered for the next "
                       "flush()",
                       records_buffered_));
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  written_ += done;
  buffered_.clear();
  records_buffered_ = 0;
}

void EventFile::flush() {
  if (!fd_ || buffered_.empty()) return;
  struct stat status {};
  if (fstat(fd_.get(), &status) == 0 && status.st_nlink == 0)
    throw FileError(
        "SummaryWriter: {}: the event file was removed, and {} buffered records have no file: make a new SummaryWriter",
        path_, records_buffered_);
  write_buffered();
}

// Some file systems (NFS, quotas) report earlier failures only now. After EINTR the descriptor is closed as well.
void EventFile::close() {
  if (!fd_) return;
  flush();
  constexpr const char* kRemedy = "earlier records may be missing: check the disk, or write to another log_dir";
  if (fsync(fd_.get()) != 0) fail("cannot be synced", errno, kRemedy);
  if (::close(fd_.release()) != 0 && errno != EINTR) fail("cannot be closed", errno, kRemedy);
}

}  // namespace lockstep::train::events
