// TensorBoard's event file: records in TFRecord framing, each of which is an Event message.
//
// A record is its length (8 bytes), the length's checksum (4), the event, and the event's checksum (4), all
// little-endian (tensorflow/core/lib/io/record_writer.h). The checksum is a masked CRC32C: it is rotated right by 15
// bits and a constant is added, because CRCs of data that contains CRCs are weak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/core/process/fd.h"
#include "src/train/files/protobuf_encoder.h"

namespace lockstep::train::events {

// CRC-32C (Castagnoli) of RFC 3720: crc32c("123456789") is 0xe3069283.
std::uint32_t crc32c(std::string_view data);
std::uint32_t masked_crc32c(std::string_view data);

std::string record_of(const Message& event);

// Returns "events.out.tfevents.<seconds>.<host>.<pid>.<n>", the name format of TensorBoard's writer; n counts this
// process's files.
std::string event_file_name(double seconds);

struct EventFileOptions {
  std::string name;    // empty: event_file_name()
  int max_queue = 10;  // records that are buffered
  double flush_seconds = 120;
  // Readers drop this step and later ones from older files of the folder.
  std::optional<std::int64_t> purge_step = std::nullopt;
};

// A new file that begins with its version record. Not thread-safe. Every failure throws FileError with the file, the
// cause and the remedy.
class EventFile {
 public:
  // Creates the folder and writes the version.
  EventFile(const std::string& folder, double now, const EventFileOptions& options);
  ~EventFile();  // calls close() and logs its failure
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // `now` is the record's time in seconds since 1970. Flushes when enough records are buffered or the last flush is too
  // long ago.
  void add(double now, const Message& event) { add(now, {&event, 1}); }
  void add(double now, std::span<const Message> events);
  // Writes to the system's cache, where TensorBoard sees it. If it fails, the records stay buffered and the next flush
  // writes them at the same place.
  void flush();
  // Flushes and waits for the disk; nothing can be added afterwards. If the flush fails, the file stays open for
  // another attempt.
  void close();

  const std::string& path() const { return path_; }
  const EventFileOptions& options() const { return options_; }

 private:
  [[noreturn]] void fail(const char* what, int error, const std::string& remedy) const;
  void write_buffered();

  std::string path_;
  const EventFileOptions options_;
  Fd fd_;
  std::uint64_t written_ = 0;  // bytes of complete records
  std::string buffered_;       // buffered records
  int records_buffered_ = 0;
  double last_flush_;
};

}  // namespace lockstep::train::events
