#include "src/data/image_files/decode_image.h"

#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "lockstep/core/error.h"
#include "src/core/process/file_kind.h"

namespace lockstep::data {

namespace {

constexpr std::string_view kJpegMark = "\xff\xd8\xff", kPngMark = "\x89PNG\r\n\x1a\n";

bool begins_with(std::span<const std::uint8_t> bytes, std::string_view mark) {
  return bytes.size() >= mark.size() &&
         std::equal(mark.begin(), mark.end(), bytes.begin(),
                    [](char wanted, std::uint8_t byte) { return static_cast<std::uint8_t>(wanted) == byte; });
}

Tensor pixels_of(std::int64_t height, std::int64_t width, const std::string& path, std::int64_t max_pixels) {
  if (height < 1 || width < 1) throw FileError("{}: states a size of {} x {} pixels", path, width, height);
  if (height > max_pixels / width)
    throw FileError(
        "{}: states a size of {} x {} pixels, and at most {} pixels are decoded: raise max_pixels if the image is "
        "meant",
        path, width, height, max_pixels);
  return Tensor::empty({height, width, 3}, DType::kUInt8, cpu_device());
}

// CMYK, with 255 for no ink as Adobe's programs write it, to RGB: what paper of a share of black reflects through the
// other ink, rounded to the nearest as in Pillow (libImaging/Convert.c).
void mix_inks(std::span<const std::uint8_t> inks, std::span<std::uint8_t> pixels) {
  for (std::size_t i = 0, j = 0; i < pixels.size(); i += 3, j += 4)
    for (std::size_t color = 0; color < 3; ++color) {
      const int white = inks[j + 3], absorbed = (255 - inks[j + color]) * white;
      pixels[i + color] = static_cast<std::uint8_t>(white - (2 * absorbed + 255) / 510);
    }
}

struct JpegHandle {
  JpegHandle() : handle(tjInitDecompress()) {}
  ~JpegHandle() {
    if (handle != nullptr) tjDestroy(handle);
  }
  JpegHandle(const JpegHandle&) = delete;
  JpegHandle& operator=(const JpegHandle&) = delete;
  tjhandle handle;
};

Tensor decode_jpeg(std::span<const std::uint8_t> bytes, const std::string& path, std::int64_t max_pixels) {
  const JpegHandle jpeg;
  if (jpeg.handle == nullptr) throw Error("read_image: libjpeg-turbo cannot begin: {}", tjGetErrorStr2(nullptr));
  const auto refuse = [&]() -> FileError {
    return FileError("{}: libjpeg-turbo: {}: is the image cut short or damaged?", path, tjGetErrorStr2(jpeg.handle));
  };
  int width = 0, height = 0, sampling = 0, colors = 0;
  if (tjDecompressHeader3(jpeg.handle, bytes.data(), bytes.size(), &width, &height, &sampling, &colors) != 0)
    throw refuse();
  const bool is_cmyk = colors == TJCS_CMYK || colors == TJCS_YCCK;
  const Tensor pixels = pixels_of(height, width, path, max_pixels),
               inks = is_cmyk ? Tensor::empty({height, width, 4}, DType::kUInt8, cpu_device()) : Tensor();
  // A warning, such as missing data at the end, is a failure, too, but for bytes between all the data and the end mark.
  if (tjDecompress2(jpeg.handle, bytes.data(), bytes.size(), (is_cmyk ? inks : pixels).data<std::uint8_t>(), width, 0,
                    height, is_cmyk ? TJPF_CMYK : TJPF_RGB, TJFLAG_ACCURATEDCT) != 0 &&
      !(tjGetErrorCode(jpeg.handle) == TJERR_WARNING &&
        std::string_view(tjGetErrorStr2(jpeg.handle)).find("extraneous bytes before marker 0xd9") !=
            std::string_view::npos))
    throw refuse();
  if (is_cmyk) mix_inks(inks.span<std::uint8_t>(), pixels.span<std::uint8_t>());
  return pixels;
}

Tensor decode_png(std::span<const std::uint8_t> bytes, const std::string& path, std::int64_t max_pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> freed(&image, png_image_free);
  const auto refuse = [&]() -> FileError {
    return FileError("{}: libpng: {}: is the image cut short or damaged?", path, image.message);
  };
  if (png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()) == 0) throw refuse();
  const Tensor pixels = pixels_of(image.height, image.width, path, max_pixels);
  // With its transparency, which libpng would mix with a background.
  image.format = PNG_FORMAT_RGBA;
  const Tensor with_alpha = Tensor::empty({image.height, image.width, 4}, DType::kUInt8, cpu_device());
  if (png_image_finish_read(&image, nullptr, with_alpha.data<std::uint8_t>(), 0, nullptr) == 0 ||
      PNG_IMAGE_FAILED(image))  // warnings are about chunks other than the pixels, such as a text or a colour profile
    throw refuse();
  const auto from = with_alpha.span<std::uint8_t>();
  const auto to = pixels.span<std::uint8_t>();
  for (std::size_t i = 0, j = 0; i < to.size(); i += 3, j += 4) std::copy_n(&from[j], 3, &to[i]);
  return pixels;
}

}  // namespace

Tensor decode_image(std::span<const std::uint8_t> bytes, const std::string& path, std::int64_t max_pixels) {
  if (begins_with(bytes, kJpegMark)) return decode_jpeg(bytes, path, max_pixels);
  if (begins_with(bytes, kPngMark)) return decode_png(bytes, path, max_pixels);
  throw FileError("{}: is neither a JPEG nor a PNG image: its first bytes are those of neither.{}", path,
                  mistaken_download(std::as_bytes(bytes)));
}

}  // namespace lockstep::data
