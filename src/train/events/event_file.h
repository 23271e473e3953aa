// TensorBoard's event file: records of TFRecord's framing, each of which is a message Event.
//
// A record is its length (8 bytes), the length's checksum (4), the event, and the event's checksum (4), all
// little-endian (tensorflow/core/lib/io/record_writer.h). The checksum is CRC32C, masked: rotated by 15 bits to the
// right, and a constant added, so that a checksum of data that holds checksums is a good one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/core/process/fd.h"
#include "src/train/files/protobuf_encoder.h"

namespace lockstep::events {

// CRC-32C (Castagnoli), as in RFC 3720: crc32c("123456789") is 0xe3069283.
std::uint32_t crc32c(std::string_view data);
std::uint32_t masked_crc32c(std::string_view data);

std::string record_of(const Message& event);

// "events.out.tfevents.<seconds>.<host>.<pid>.<n>", as TensorBoard's own writer calls it: n counts the files of this
// process.
std::string event_file_name(double seconds);

struct EventFileOptions {
  std::string name;    // empty: event_file_name()
  int max_queue = 10;  // records that wait in memory
  double flush_seconds = 120;
  std::optional<std::int64_t> purge_step =
      std::nullopt;  // readers drop what older files of the folder have of it and later steps
};

// A new file whose first record is its version. Not thread-safe. Every failure throws FileError that names the file,
// the cause and the remedy.
class EventFile {
 public:
  EventFile(const std::string& folder, double now,
            const EventFileOptions& options);  // makes the folder; the version is in the file then
  ~EventFile();                                // close(), whose failure it logs
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Of the time `now`, seconds since 1970. Flushes when enough records wait, or when the last flush is long past.
  void add(double now, const Message& event) { add(now, {&event, 1}); }
  void add(double now, std::span<const Message> events);
  // Into the system's cache, where TensorBoard sees it. Records of a flush that fails stay, and the next one writes
  // them in their place.
  void flush();
  // Flushes and waits for the disk; nothing can be added then. When the flush fails the file stays open, for another
  // try.
  void close();

  const std::string& path() const { return path_; }
  const EventFileOptions& options() const { return options_; }

 private:
  [[noreturn]] void fail(const char* what, int error, const std::string& remedy) const;
  void write_waiting();

  std::string path_;
  const EventFileOptions options_;
  Fd fd_;
  std::uint64_t written_ = 0;  // bytes of whole records
  std::string waiting_;        // records
  int records_waiting_ = 0;
  double last_flush_;
};

}  // namespace lockstep::events
