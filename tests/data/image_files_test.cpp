// Tests of JPEG and PNG files, of resizing and of ImageFolder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>
#include <turbojpeg.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/data/files.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/npy.h"
#include "tests/data/files_for_tests.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Colours that depend on the place.
Tensor pattern(std::int64_t height, std::int64_t width) {
  const Tensor image = Tensor::empty({height, width, 3}, DType::kUInt8, cpu_device());
  const auto values = image.span<std::uint8_t>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i * 7 + i / 64);
  return image;
}

void write_png(const std::string& path, const Tensor& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.shape()[1]);
  png.height = static_cast<png_uint_32>(image.shape()[0]);
  png.format = PNG_FORMAT_RGB;
  ASSERT_NE(png_image_write_to_file(&png, path.c_str(), 0, image.data<std::uint8_t>(), 0, nullptr), 0) << png.message;
}

std::string jpeg_of(const Tensor& image) {
  const tjhandle handle = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(handle, image.data<std::uint8_t>(), static_cast<int>(image.shape()[1]), 0,
                        static_cast<int>(image.shape()[0]), TJPF_RGB, &bytes, &size, TJSAMP_444, 95, 0),
            0);
  std::string jpeg(reinterpret_cast<const char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(handle);
  return jpeg;
}

std::string chunk(const std::string& type, const std::string& content, bool is_intact = true) {
  const auto word = [](unsigned long value) {
    std::string bytes;
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 255);
    return bytes;
  };
  const std::string checked = type + content;
  const unsigned long sum = crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size()));
  return word(content.size()) + checked + word(is_intact ? sum : sum ^ 1);
}

std::string bytes_of(const std::string& path) {
  const auto bytes = read_file(path);
  return {bytes.begin(), bytes.end()};
}

// A folder of images that is removed in the destructor.
class TestImageFolder {
 public:
  TestImageFolder() : path_(testing::temporary("images")) { std::filesystem::create_directory(path_); }
  ~TestImageFolder() {
    std::error_code failure;
    std::filesystem::remove_all(path_, failure);
  }
  TestImageFolder(const TestImageFolder&) = delete;
  TestImageFolder& operator=(const TestImageFolder&) = delete;
  std::string add(const std::string& name, const Tensor& image) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_png(path, image);
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ReadImage, GivesTheWrittenPixels) {
  const TestImageFolder folder;
  const Tensor image = pattern(5, 9);
  const Tensor read = read_image(folder.add("x.png", image));
  EXPECT_EQ(read.shape(), image.shape());
  EXPECT_THAT(read.span<std::uint8_t>(), ::testing::ElementsAreArray(image.span<std::uint8_t>()));
  const TestFile jpeg(jpeg_of(pattern(16, 16)), "named.png");  // the content decides
  EXPECT_EQ(read_image(jpeg.path()).shape(), Shape({16, 16, 3}));
}

TEST(ReadImage, PicturesCutShortAndOtherFilesAreRefusedByName) {
  const TestImageFolder folder;
  const std::string png = bytes_of(folder.add("x.png", pattern(6, 6))), jpeg = jpeg_of(pattern(6, 6));
  for (const std::string& whole : {png, jpeg}) {
    const TestFile half(whole.substr(0, whole.size() * 2 / 3), "half");
    EXPECT_THAT(message_of([&] { read_image(half.path()); }),
                AllOf(HasSubstr(half.path()), HasSubstr("is the image cut short or damaged?")));
    EXPECT_GT(refused_when_damaged(whole, [](const std::string& path) { read_image(path); }),
              static_cast<int>(whole.size()) / 2);
    const TestFile complete(whole, "complete");
    EXPECT_THAT(message_of([&] { read_image(complete.path(), 35); }),
                HasSubstr("states a size of 6 x 6 pixels, and at most 35 pixels are decoded"));
  }
  const TestFile text("hello", "text.jpg"), empty("", "empty.jpg");
  EXPECT_THAT(message_of([&] { read_image(text.path()); }), HasSubstr("text.jpg: is neither a JPEG nor a PNG image"));
  EXPECT_THAT(message_of([&] { read_image(empty.path()); }), HasSubstr("is neither a JPEG nor a PNG image"));
  EXPECT_THAT(message_of([&] { read_image(folder.path() + "/none.png"); }), HasSubstr("none.png"));
}

// Chunks that libpng warns about, after the header of 33 bytes.
TEST(ReadImage, DamageOutsideThePixelsIsIgnored) {
  const TestImageFolder folder;
  const Tensor image = pattern(6, 6);
  const std::string png = bytes_of(folder.add("x.png", image));
  const std::vector<std::string> harmless = {chunk("iCCP", "no profile"), chunk("tEXt", "Comment\0hello", false),
                                             chunk("gAMA", "short"), chunk("tIME", "no time") + chunk("tIME", "again")};
  for (const std::string& other : harmless) {
    const TestFile file(png.substr(0, 33) + other + png.substr(33), "other.png");
    const Tensor read = read_image(file.path());
    EXPECT_THAT(read.span<std::uint8_t>(), ::testing::ElementsAreArray(image.span<std::uint8_t>())) << other;
  }
  // Bytes before the mark of the end, where a camera or a download left them.
  const std::string jpeg = jpeg_of(image),
                    filled = jpeg.substr(0, jpeg.size() - 2) + std::string(100, 'a') + jpeg.substr(jpeg.size() - 2);
  const TestFile whole(jpeg, "whole.jpg"), longer(filled, "longer.jpg");
  EXPECT_THAT(read_image(longer.path()).span<std::uint8_t>(),
              ::testing::ElementsAreArray(read_image(whole.path()).span<std::uint8_t>()));
}

// A complete file whose pixels' chunk holds too few, or bytes that are no pixels.
TEST(ReadImage, PixelsCutShortWithinAWholeFileAreRefused) {
  const TestImageFolder folder;
  const std::string png = bytes_of(folder.add("x.png", pattern(16, 16)));
  const std::size_t at = png.find("IDAT"), end = png.find("IEND");
  ASSERT_LT(at, end);
  const std::string pixels = png.substr(at + 4, end - 8 - (at + 4));  // without the chunk's sum and the next length
  for (const std::string& damaged : {pixels.substr(0, pixels.size() / 2), pixels.substr(0, pixels.size() - 8),
                                     std::string(), std::string(pixels.size(), 'x')}) {
    const TestFile file(png.substr(0, at - 4) + chunk("IDAT", damaged) + chunk("IEND", ""), "short.png");
    EXPECT_THAT(message_of([&] { read_image(file.path()); }), HasSubstr("is the image cut short or damaged?"));
  }
  const std::string jpeg = jpeg_of(pattern(16, 16));
  const TestFile half(jpeg.substr(0, jpeg.size() * 3 / 4) + "\xff\xd9", "half.jpg");
  EXPECT_THAT(message_of([&] { read_image(half.path()); }), HasSubstr("is the image cut short or damaged?"));
}

TEST(ReadImage, ConvertsCmyk) {
  // White, black, a cyan of half the ink, and the same on paper of half the light, in the bytes of Adobe's programs.
  const std::vector<std::uint8_t> inks = {255, 255, 255, 255, 255, 255, 255, 0, 128, 255, 255, 255, 128, 255, 255, 128};
  for (const int place : {0, 1, 2, 3}) {
    std::vector<std::uint8_t> all;
    for (int i = 0; i < 64; ++i) all.insert(all.end(), inks.begin() + place * 4, inks.begin() + place * 4 + 4);
    const tjhandle handle = tjInitCompress();
    unsigned char* bytes = nullptr;
    unsigned long size = 0;
    ASSERT_EQ(tjCompress2(handle, all.data(), 8, 0, 8, TJPF_CMYK, &bytes, &size, TJSAMP_444, 100, 0), 0);
    const TestFile file(std::string(reinterpret_cast<const char*>(bytes), size), "inks.jpg");
    tjFree(bytes);
    tjDestroy(handle);
    const Tensor pixels = read_image(file.path());
    ASSERT_EQ(pixels.shape(), Shape({8, 8, 3}));
    const std::vector<std::vector<int>> expected = {{255, 255, 255}, {0, 0, 0}, {128, 255, 255}, {64, 128, 128}};
    for (std::size_t i = 0; i < 192; ++i)
      ASSERT_NEAR(pixels.span<std::uint8_t>()[i], expected[static_cast<std::size_t>(place)][i % 3], 3) << place;
  }
}

TEST(ResizeImage, AveragesWhatAPixelCovers) {
  const Tensor image = Tensor::empty({2, 4, 1}, DType::kUInt8, cpu_device());
  const auto values = image.span<std::uint8_t>();
  std::copy_n(std::array<std::uint8_t, 8>{0, 100, 200, 40, 0, 100, 200, 40}.begin(), 8, values.begin());
  // A triangle of two pixels to each side of 1 and of 3, of which 0.75, 0.75 and 0.25 (twice, once outside) remain.
  EXPECT_THAT(resize_image(image, 1, 2).span<std::uint8_t>(), ElementsAre(71, 117));
  EXPECT_THAT(resize_image(image, 2, 4).span<std::uint8_t>(), ::testing::ElementsAreArray(values));
  EXPECT_THAT(message_of([&] { resize_image(image, 0, 4); }), HasSubstr("got 0 and 4"));
  EXPECT_THAT(message_of([&] { resize_image(Tensor::zeros({2, 2, 3}), 1, 1); }), HasSubstr("got float32 (2, 2, 3)"));
  EXPECT_THAT(message_of([&] { resize_image(Tensor(), 1, 1); }), HasSubstr("an undefined tensor"));
}

TEST(ImageFolder, NumbersClassesByTheirNames) {
  const TestImageFolder folder;
  folder.add("dog/2.png", pattern(8, 8));
  folder.add("dog/1.PNG", pattern(8, 8));
  folder.add("cat/deep/3.png", pattern(8, 8));
  std::ofstream(folder.path() + "/cat/notes.txt") << "no image";
  const ImageFolder set(folder.path(), {.size = 4});
  EXPECT_THAT(set.classes(), ElementsAre("cat", "dog"));
  ASSERT_EQ(set.size(), 3);
  EXPECT_THAT(set.path(0), HasSubstr("cat/deep/3.png"));
  EXPECT_THAT(set.path(1), HasSubstr("dog/1.PNG"));
  EXPECT_EQ(set.label(0), 0);
  EXPECT_EQ(set.label(2), 1);
  const DistributedSampler sampler(set.size(), {}, {.shuffle = false});
  DataLoader loader(set, sampler, {.batch_size = 3, .num_workers = 2});
  for (auto& [images, labels] : loader) {
    EXPECT_EQ(images.shape(), Shape({3, 4, 4, 3}));
    EXPECT_THAT(labels.span<std::int64_t>(), ElementsAre(0, 1, 1));
  }
}

// The samples are the centre of the resized image, of which no other pixel is computed.
TEST(ImageFolder, TakesTheCentreOfLongImages) {
  const TestImageFolder folder;
  const ImageNormalization plain = normalize_channels({0, 0, 0}, {1.0f / 255, 1.0f / 255, 1.0f / 255});
  for (const auto& [height, width] : {std::pair{40, 30}, {30, 41}, {7, 7}, {300, 9}, {9, 301}, {64, 64}, {8, 90}}) {
    SCOPED_TRACE(fmt::format("{} x {}", height, width));
    const std::string path = folder.add("a/1.png", pattern(height, width));
    const Tensor image = read_image(path),
                 seen = ImageFolder(folder.path(), {.size = 8, .resize = 1.25f, .normalization = plain}).get(0, 0)[0];
    const std::int64_t longer = 10 * std::max(height, width) / std::min(height, width);
    const Tensor all = height <= width ? resize_image(image, 10, longer) : resize_image(image, longer, 10);
    const auto margin = [](std::int64_t extent) { return std::lround(std::nearbyint((extent - 8) / 2.0)); };
    const std::int64_t top = margin(all.shape()[0]), left = margin(all.shape()[1]);
    for (std::int64_t i = 0; i < 192; ++i) {
      const std::int64_t from = ((top + i / 24) * all.shape()[1] + left + i / 3 % 8) * 3 + i % 3;
      ASSERT_FLOAT_EQ(seen.data<float>()[i], all.data<std::uint8_t>()[from]) << i;
    }
  }
  // The whole image would be 512 x 153,600,000.
  for (const auto& [height, width] : {std::pair{300'000, 1}, {1, 300'000}}) {
    folder.add("a/1.png", pattern(height, width));
    EXPECT_EQ(ImageFolder(folder.path(), {.size = 448}).get(0, 0)[0].shape(), Shape({448, 448, 3}));
  }
}

TEST(ImageFolder, AugmentsTheSameOnEveryRankAndAnewInEachEpoch) {
  const TestImageFolder folder;
  folder.add("a/1.png", pattern(40, 30));
  const ImageFolderOptions options{
      .size = 16, .augment = true, .brightness = 0.4f, .contrast = 0.4f, .saturation = 0.4f, .seed = 3};
  const ImageFolder set(folder.path(), options), again(folder.path(), options);
  const auto values = [](const ImageFolder& of, std::int64_t epoch) {
    const Tensor image = of.get(0, epoch)[0];
    const auto span = image.span<float>();
    return std::vector<float>(span.begin(), span.end());
  };
  EXPECT_EQ(values(set, 1), values(again, 1));
  EXPECT_NE(values(set, 1), values(set, 2));
  for (std::int64_t epoch = 0; epoch < 50; ++epoch)
    for (const float value : values(set, epoch)) ASSERT_TRUE(value > -2.2f && value < 2.7f) << value;  // of 0 and 1
}

TEST(ImageFolder, MirrorsAndChangesColours) {
  const TestImageFolder folder;
  folder.add("a/1.png", pattern(8, 8));
  const ImageNormalization plain = normalize_channels({0, 0, 0}, {1, 1, 1});
  ImageFolderOptions options{.size = 8,
                             .augment = true,
                             .scale_low = 1,
                             .scale_high = 1,
                             .ratio_low = 1,
                             .ratio_high = 1,
                             .flip = 1,
                             .normalization = plain};
  const Tensor image = pattern(8, 8), mirrored = ImageFolder(folder.path(), options).get(0, 0)[0];
  for (std::size_t y = 0; y < 8; ++y)
    for (std::size_t x = 0; x < 8; ++x)
      EXPECT_FLOAT_EQ(mirrored.span<float>()[(y * 8 + x) * 3] * 255, image.span<std::uint8_t>()[(y * 8 + 7 - x) * 3]);
  options.flip = 0;
  options.saturation = 1;
  const Tensor grey = ImageFolder(folder.path(), options).get(0, 0)[0];
  bool differs = false;
  for (std::size_t i = 0; i < image.span<std::uint8_t>().size(); ++i)
    differs = differs || std::abs(grey.span<float>()[i] * 255 - image.span<std::uint8_t>()[i]) > 1;
  EXPECT_TRUE(differs);
}

TEST(ImageFolder, MistakesAreNamed) {
  const TestImageFolder folder;
  EXPECT_THAT(message_of([&] { ImageFolder(folder.path()); }),
              HasSubstr("has no folders: expected one for each class"));
  EXPECT_THAT(message_of([&] { ImageFolder(folder.path() + "/none"); }), HasSubstr("none: cannot list the folder"));
  std::filesystem::create_directory(folder.path() + "/empty");
  EXPECT_THAT(message_of([&] { ImageFolder(folder.path()); }), HasSubstr("empty: has no images"));
  const std::string path = folder.add("empty/1.png", pattern(8, 8));
  EXPECT_THAT(message_of([&] { ImageFolder(folder.path(), {.size = 0}); }), HasSubstr("size is 0"));
  EXPECT_THAT(message_of([&] { ImageFolder(folder.path(), {.scale_low = 0.5f, .scale_high = 0.2f}); }),
              HasSubstr("scale_high is 0.2, expected a number from 0.5 to 1"));
  EXPECT_THAT(message_of([&] { ImageFolder(folder.path(), {.flip = NAN}); }), HasSubstr("flip is nan"));
  const ImageFolder set(folder.path(), {.size = 4});
  EXPECT_THAT(message_of([&] { set.get(1, 0); }), HasSubstr("sample 1 does not exist; the set has 1"));
  std::filesystem::resize_file(path, 60);
  const DistributedSampler sampler(set.size(), {}, {.shuffle = false});
  DataLoader loader(set, sampler, {});
  EXPECT_THAT(message_of([&] { loader.begin(); }),
              AllOf(HasSubstr("sample 0"), HasSubstr("1.png"), HasSubstr("cut short")));
}

// Pillow 13 resizes the columns of some images first, and values are rounded after each of the two passes.
void expect_near(const Tensor& seen, const Tensor& expected) {
  ASSERT_EQ(seen.shape(), expected.shape());
  for (std::size_t i = 0; i < seen.span<std::uint8_t>().size(); ++i)
    ASSERT_LE(std::abs(seen.span<std::uint8_t>()[i] - expected.span<std::uint8_t>()[i]), 2) << i;
}

TEST(ImageFolder, EqualsPillowAndTorchvision) {
  const char* const python = std::getenv("LOCKSTEP_TEST_TORCH_PYTHON");
  if (python == nullptr || *python == '\0')
    GTEST_SKIP() << "LOCKSTEP_TEST_TORCH_PYTHON names no python with torchvision";
  if (std::system((std::string(python) + " -c 'import PIL, torchvision' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << python << " has no packages pillow and torchvision";
  const TestImageFolder folder;
  ASSERT_EQ(std::system((std::string(python) + " " + LOCKSTEP_MAKE_IMAGES + " " + folder.path()).c_str()), 0);
  const ImageFolder set(folder.path() + "/set", {.size = 32, .resize = 37.0f / 32});
  const std::vector<std::string> names = read_lines(folder.path() + "/images.txt");
  ASSERT_EQ(set.size(), static_cast<std::int64_t>(names.size()));
  for (std::int64_t i = 0; i < set.size(); ++i) {
    SCOPED_TRACE(set.path(i));
    std::string flat = set.path(i).substr(folder.path().size() + 5);
    std::replace(flat.begin(), flat.end(), '/', '_');
    const Tensor pixels = read_image(set.path(i)), expected = read_npy(folder.path() + "/" + flat + ".pixels.npy");
    ASSERT_EQ(pixels.shape(), expected.shape());
    EXPECT_THAT(pixels.span<std::uint8_t>(), ::testing::ElementsAreArray(expected.span<std::uint8_t>()));
    for (const auto& [height, width] : {std::pair{32, 32}, {200, 17}, {61, 300}, {3, 500}}) {
      const Tensor resized =
          read_npy(folder.path() + "/" + flat + "." + std::to_string(height) + "x" + std::to_string(width) + ".npy");
      expect_near(resize_image(expected, height, width), resized);
    }
    const Tensor centre = read_npy(folder.path() + "/" + flat + ".centre.npy"), seen = set.get(i, 0)[0];
    ASSERT_EQ(centre.shape(), seen.shape());
    for (std::size_t at = 0; at < centre.span<float>().size(); ++at)
      ASSERT_NEAR(centre.span<float>()[at], seen.span<float>()[at], 2 / 255.0f / 0.224f + 2e-6f);
  }
}

}  // namespace
}  // namespace lockstep::data
