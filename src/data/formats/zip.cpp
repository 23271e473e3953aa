#include "src/data/formats/zip.h"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

constexpr std::uint32_t kEndSignature = 0x06054b50, kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr std::size_t kEndBytes = 22, kEntryBytes = 46, kLocalBytes = 30, kLongestComment = 65535;
constexpr std::uint16_t kStored = 0, kDeflated = 8, kEncrypted = 1;

// Numbers of an archive are little-endian.
class ZipBytes {
 public:
  ZipBytes(std::span<const std::uint8_t> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  std::size_t size() const { return bytes_.size(); }
  std::span<const std::uint8_t> part(std::size_t at, std::size_t count) const {
    if (at > bytes_.size() || count > bytes_.size() - at)
      throw FileError("{}: the zip archive has {} bytes but refers to byte {}: is the file truncated?", path_,
                      bytes_.size(), at + count);
    return bytes_.subspan(at, count);
  }
  std::uint16_t number16(std::size_t at) const {
    const auto two = part(at, 2);
    return static_cast<std::uint16_t>(two[0] | two[1] << 8);
  }
  std::uint32_t number32(std::size_t at) const { return number16(at) | std::uint32_t{number16(at + 2)} << 16; }
  std::string text(std::size_t at, std::size_t count) const {
    const auto all = part(at, count);
    return {all.begin(), all.end()};
  }

 private:
  std::span<const std::uint8_t> bytes_;
  const std::string& path_;
};

// An entry of the archive's directory.
struct ZipEntry {
  std::string name;
  std::uint16_t flags = 0, method = 0;
  std::uint32_t crc = 0, packed = 0, unpacked = 0, local = 0;
};

// The end record comes last, before a comment.
std::size_t find_end(const ZipBytes& bytes, const std::string& path) {
  const std::size_t lowest =
      bytes.size() > kEndBytes + kLongestComment ? bytes.size() - kEndBytes - kLongestComment : 0;
  for (std::size_t at = bytes.size() < kEndBytes ? 0 : bytes.size() - kEndBytes + 1; at-- > lowest;)
    if (bytes.number32(at) == kEndSignature) return at;
  throw FileError("{}: is not a zip archive: it has no end record; is the file truncated, or a page of HTML?", path);
}

std::vector<ZipEntry> entries_of(const ZipBytes& bytes, const std::string& path) {
  const std::size_t end = find_end(bytes, path);
  const std::size_t count = bytes.number16(end + 10);
  std::size_t at = bytes.number32(end + 16);
  std::vector<ZipEntry> entries;
  for (std::size_t i = 0; i < count; ++i) {
    if (bytes.number32(at) != kEntrySignature)
      throw FileError("{}: entry {} of the zip archive's directory is damaged", path, i);
    const std::size_t name = bytes.number16(at + 28), extra = bytes.number16(at + 30),
                      comment = bytes.number16(at + 32);
    entries.push_back({bytes.text(at + kEntryBytes, name), bytes.number16(at + 8), bytes.number16(at + 10),
                       bytes.number32(at + 16), bytes.number32(at + 20), bytes.number32(at + 24),
                       bytes.number32(at + 42)});
    at += kEntryBytes + name + extra + comment;
  }
  return entries;
}

std::vector<std::uint8_t> inflate_raw(std::span<const std::uint8_t> packed, std::size_t size) {
  std::vector<std::uint8_t> out(size + 1);  // one more byte shows that there is too much
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  stream.next_in = const_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = inflate(&stream, Z_FINISH);
  const std::size_t written = out.size() - stream.avail_out;
  inflateEnd(&stream);
  out.resize(status == Z_STREAM_END ? written : 0);
  return out;
}

}  // namespace

std::vector<std::uint8_t> unzip(std::span<const std::uint8_t> archive, const std::string& name, const std::string& path,
                                std::uint64_t max_bytes) {
  const ZipBytes bytes(archive, path);
  const std::vector<ZipEntry> entries = entries_of(bytes, path);
  const auto entry =
      std::find_if(entries.begin(), entries.end(), [&](const ZipEntry& each) { return each.name == name; });
  if (entry == entries.end()) {
    std::string names;
    for (const ZipEntry& each : entries) names += (names.empty() ? "" : ", ") + each.name;
    throw FileError("{}: the archive has no member '{}', only {}", path, name, names.empty() ? "none" : names);
  }
  if ((entry->flags & kEncrypted) != 0 || (entry->method != kStored && entry->method != kDeflated))
    throw FileError("{}: member '{}' is {}: save it again with numpy.savez or numpy.savez_compressed", path, name,
                    (entry->flags & kEncrypted) != 0 ? "encrypted" : fmt::format("packed by method {}", entry->method));
  if (entry->unpacked > max_bytes)
    throw FileError(
        "{}: member '{}' unpacks to {} bytes, more than {}: give the reader a larger max_bytes if it is "
        "meant to",
        path, name, entry->unpacked, max_bytes);
  if (bytes.number32(entry->local) != kLocalSignature)
    throw FileError("{}: the header of member '{}' is damaged", path, name);
  const std::size_t begin =
      entry->local + kLocalBytes + bytes.number16(entry->local + 26) + bytes.number16(entry->local + 28);
  const std::span<const std::uint8_t> packed = bytes.part(begin, entry->packed);
  std::vector<std::uint8_t> member = entry->method == kStored ? std::vector<std::uint8_t>(packed.begin(), packed.end())
                                                              : inflate_raw(packed, entry->unpacked);
  if (member.size() != entry->unpacked || crc32(0, member.data(), static_cast<uInt>(member.size())) != entry->crc)
    throw FileError("{}: member '{}' is damaged: its size or checksum is wrong; copy the file again", path, name);
  return member;
}

}  // namespace lockstep::data
