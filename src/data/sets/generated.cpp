// The generated substitute for CIFAR-10: ten textures in random colours, phases and polarities.
//
// Only local structure distinguishes the classes. Each single pixel has the same distribution in all classes, so a
// linear model learns nothing. No two classes are mirror images of each other, because training flips images.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/cifar10.h"
#include "lockstep/tensor/random.h"
#include "src/data/sets/cifar10_format.h"

namespace lockstep::data {

namespace fs = std::filesystem;

namespace {

// The placement of an image's texture, drawn for each image.
struct Texture {
  float x0, y0;    // phase
  float period;    // for fine textures; coarse ones have about twice that
  bool other_way;  // direction of the diagonals
};

bool stripe(float position, float period) { return position / period - std::floor(position / period) < 0.5f; }

// Returns whether the pixel is in the texture's foreground.
bool is_foreground(int label, float x, float y, const Texture& t) {
  const float u = x + t.x0, v = y + t.y0;
  const float coarse = 2.2f * t.period;
  switch (label) {
    case 0: return stripe(v, t.period);
    case 1: return stripe(v, coarse);
    case 2: return stripe(u, t.period);
    case 3: return stripe(u, coarse);
    case 4: return stripe((t.other_way ? u - v : u + v) * 0.7f, t.period);
    case 5: return stripe(u, t.period) != stripe(v, t.period);
    case 6: return stripe(u, coarse) != stripe(v, coarse);
    case 7: return stripe(u, t.period) && stripe(v, t.period);
    case 8: {
      const float dx = x - 16 + (t.x0 - 16) / 4, dy = y - 16 + (t.y0 - 16) / 4;
      return stripe(std::sqrt(dx * dx + dy * dy) + t.x0, t.period * 1.2f);
    }
    default: return stripe(u, coarse) && stripe(v, coarse);
  }
}

// Draws two colours that differ clearly in every channel; either may be the brighter one.
void draw_colours(Philox& random, std::array<float, 3>& foreground, std::array<float, 3>& background) {
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const float middle = random.uniform(80, 175), half = random.uniform(20, 70);
    const bool bright = random.below(2) == 1;
    foreground[channel] = middle + (bright ? half : -half);
    background[channel] = middle - (bright ? half : -half);
  }
}

void draw_image(std::uint8_t* record, int label, Philox random) {
  const Texture texture{random.uniform(0, 32), random.uniform(0, 32), random.uniform(3.6f, 4.4f), random.below(2) == 1};
  std::array<float, 3> foreground, background;
  draw_colours(random, foreground, background);
  record[0] = static_cast<std::uint8_t>(label);
  std::uint8_t* pixel = record + 1;
  for (std::size_t channel = 0; channel < 3; ++channel)
    for (int y = 0; y < kCifar10Side; ++y)
      for (int x = 0; x < kCifar10Side; ++x) {
        const bool front = is_foreground(label, static_cast<float>(x), static_cast<float>(y), texture);
        const float value = (front ? foreground : background)[channel] + random.uniform(-20, 20);
        *pixel++ = static_cast<std::uint8_t>(std::clamp(value, 0.f, 255.f));
      }
}

void write_file(const fs::path& path, const std::vector<std::uint8_t>& records) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(records.data()), static_cast<std::streamsize>(records.size()));
  file.flush();
  if (!file) throw FileError("{}: cannot be written: is the disk full?", path.string());
}

}  // namespace

std::vector<std::uint8_t> generate_cifar10(const GeneratedCifar10& what, bool train) {
  if (what.train_images < 1 || what.test_images < 1)
    throw InvalidArgument("generated set: got {} training and {} test images; both numbers must be positive",
                          what.train_images, what.test_images);
  const auto images = static_cast<std::size_t>(train ? what.train_images : what.test_images);
  const std::uint64_t first_number = train ? 0 : std::uint64_t{1} << 40;
  std::vector<std::uint8_t> records(images * kCifar10RecordBytes);
  for (std::size_t i = 0; i < images; ++i) {
    const std::uint64_t stream = random_stream(RandomUse::kGeneratedSet, first_number + i);
    draw_image(&records[i * kCifar10RecordBytes], static_cast<int>(i % kCifar10Classes), Philox(what.seed, stream));
  }
  return records;
}

void write_generated_cifar10(const std::string& folder, const GeneratedCifar10& what) {
  const std::vector<std::uint8_t> train = generate_cifar10(what, true), test = generate_cifar10(what, false);
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw FileError("{}: cannot be created: {}", folder, failure.message());
  write_file(fs::path(folder) / "data_batch_1.bin", train);
  write_file(fs::path(folder) / "test_batch.bin", test);
}

}  // namespace lockstep::data
