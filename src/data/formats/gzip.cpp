#include "src/data/formats/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

class Inflater {
 public:
  Inflater() {
    constexpr int kGzipOnly = 15 + 16;  // the largest window; 16 more: a gzip header and trailer, as zlib.h says
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream& stream() { return stream_; }
  const char* message() const { return stream_.msg != nullptr ? stream_.msg : "no reason given"; }

 private:
  z_stream stream_{};
};

// zlib counts in 32 bits.
uInt step_of(std::size_t bytes) { return static_cast<uInt>(std::min<std::size_t>(bytes, std::size_t{1} << 30)); }

}  // namespace

bool is_gzip(std::span<const std::uint8_t> bytes) { return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b; }

std::vector<std::uint8_t> gunzip(std::span<const std::uint8_t> packed, const std::string& path,
                                 std::uint64_t max_bytes) {
  constexpr std::size_t kFirst = std::size_t{1} << 16;
  const std::uint64_t most =
      std::min<std::uint64_t>(max_bytes, SIZE_MAX - 1) + 1;  // one more shows that there is too much
  Inflater inflater;
  z_stream& stream = inflater.stream();
  std::vector<std::uint8_t> out;
  std::size_t read = 0, written = 0;
  for (;;) {
    if (written == out.size()) {
      if (out.size() > max_bytes)
        throw FileError("{}: unpacks to more than {} bytes: give the reader a larger max_bytes if it is meant to", path,
                        max_bytes);
      out.resize(static_cast<std::size_t>(std::min<std::uint64_t>(std::max(kFirst, 2 * out.size()), most)));
    }
    const uInt in = step_of(packed.size() - read), room = step_of(out.size() - written);
    stream.next_in = const_cast<Bytef*>(packed.data() + read);
    stream.avail_in = in;
    stream.next_out = out.data() + written;
    stream.avail_out = room;
    const int status = inflate(&stream, Z_NO_FLUSH);
    read += in - stream.avail_in;
    written += room - stream.avail_out;
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (status == Z_STREAM_END) {
      // Tapes and block devices pad a file with zeros.
      const auto rest = packed.subspan(read);
      if (std::all_of(rest.begin(), rest.end(), [](std::uint8_t byte) { return byte == 0; })) break;
      inflateReset(&stream);  // another member
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      throw FileError("{}: byte {} of the gzip data is damaged: {}: copy the file again", path, read,
                      inflater.message());
    } else if (read == packed.size() && stream.avail_out > 0) {
      throw FileError("{}: the gzip data ends after {} bytes, before its end: is the file truncated?", path,
                      packed.size());
    }
  }
  if (written > max_bytes)
    throw FileError("{}: unpacks to more than {} bytes: give the reader a larger max_bytes if it is meant to", path,
                    max_bytes);
  out.resize(written);
  return out;
}

}  // namespace lockstep::data
