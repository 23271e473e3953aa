#include "src/train/files/png.h"

#include <zlib.h>

#include <new>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::train::events {

namespace {

void append_big_endian(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
}

// Length, name, data, and the checksum of name and data.
void append_chunk(std::string& out, std::string_view name, std::string_view data) {
  append_big_endian(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = out.size();
  out += name;
  out += data;
  const auto* checked = reinterpret_cast<const Bytef*>(out.data() + begin);
  append_big_endian(out, static_cast<std::uint32_t>(crc32_z(crc32(0, nullptr, 0), checked, out.size() - begin)));
}

std::string deflated(std::string_view data) {
  uLongf size = compressBound(data.size());
  std::string packed(size, '\0');
  if (compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(data.data()),
                data.size(), Z_DEFAULT_COMPRESSION) != Z_OK)
    throw std::bad_alloc();  // the only possible reason within the bound
  packed.resize(size);
  return packed;
}

char color_type(std::int64_t channels) {
  constexpr char kGrey = 0, kRgb = 2, kRgba = 6;
  return channels == 1 ? kGrey : channels == 3 ? kRgb : kRgba;
}

}  // namespace

std::string png_of(const Pixels& pixels) {
  const auto line = static_cast<std::size_t>(pixels.width * pixels.channels);
  if (pixels.bytes.empty() || pixels.bytes.size() > (std::size_t{1} << 30))
    throw InvalidArgument("an image of {} x {} pixels with {} channels: expected 1 byte to 1 GiB", pixels.height,
                          pixels.width, pixels.channels);
  std::string header;
  append_big_endian(header, static_cast<std::uint32_t>(pixels.width));
  append_big_endian(header, static_cast<std::uint32_t>(pixels.height));
  header +=
      {8, color_type(pixels.channels), 0, 0, 0};  // bits a channel; then deflate, the filters below, no interlacing
  std::string lines;
  for (std::size_t at = 0; at < pixels.bytes.size(); at += line) {
    lines += '\0';  // no filter
    lines.append(reinterpret_cast<const char*>(pixels.bytes.data() + at), line);
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", deflated(lines));
  append_chunk(png, "IEND", "");
  return png;
}

}  // namespace lockstep::train::events
