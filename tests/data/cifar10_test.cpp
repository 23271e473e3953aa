#include "lockstep/data/cifar10.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/data/loader.h"
#include "src/data/distort.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "lockstep-data-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const FileError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<float> sample(const Cifar10& set, std::int64_t index, std::int64_t epoch, std::int64_t* label = nullptr) {
  std::vector<float> input(24 * 24 * 3);
  std::int64_t target = -1;
  set.read(index, epoch, input, target);
  if (label != nullptr) *label = target;
  return input;
}

TEST(Cifar10, ReadsTheRealFilesWhenTheyAreThere) {
  if (std::getenv("LOCKSTEP_DATA") == nullptr) GTEST_SKIP() << "LOCKSTEP_DATA names no folder with CIFAR-10";
  const std::string folder = find_cifar10("");
  ASSERT_FALSE(folder.empty());
  const Cifar10 train(folder, {}), test(folder, {.train = false, .distort = false});
  EXPECT_EQ(train.size() % 10'000, 0);
  EXPECT_EQ(test.size(), 10'000);
  std::vector<int> counts(10);
  for (std::int64_t i = 0; i < test.size(); ++i) {
    std::int64_t label = -1;
    sample(test, i, 0, &label);
    ++counts.at(static_cast<std::size_t>(label));
  }
  EXPECT_EQ(counts, std::vector<int>(10, 1000)) << "the published test set is balanced";
}

TEST(Cifar10, PutsPlanesIntoPixelsAndStandardises) {
  const Folder folder;
  write_generated_cifar10(folder.path(), {.train_images = 3, .test_images = 1});
  std::ifstream file(folder.file("data_batch_1.bin"), std::ios::binary);
  std::vector<char> record(3073);
  file.read(record.data(), 3073);
  const Cifar10 set(folder.path(), {.distort = false});
  std::int64_t label = -1;
  const std::vector<float> picture = sample(set, 0, 0, &label);
  EXPECT_EQ(label, record[0]);
  double mean = 0, square = 0;
  for (const float value : picture) mean += value, square += double{value} * value;
  EXPECT_NEAR(mean / 1728, 0, 1e-5);
  EXPECT_NEAR(square / 1728, 1, 1e-4);
  // Two pixels of the centre crop, each channel: their order is that of the file's bytes.
  const auto byte_at = [&](int row, int column, int channel) {
    return static_cast<unsigned char>(record[static_cast<std::size_t>(1 + channel * 1024 + (row + 4) * 32 + column + 4)]);
  };
  for (int channel = 0; channel < 3; ++channel) {
    const float a = picture[static_cast<std::size_t>((2 * 24 + 5) * 3 + channel)],
                b = picture[static_cast<std::size_t>((17 * 24 + 20) * 3 + channel)];
    EXPECT_EQ(a < b, byte_at(2, 5, channel) < byte_at(17, 20, channel));
  }
}

TEST(Cifar10, DistortionIsAPureFunctionOfSampleEpochAndSeed) {
  const Folder folder;
  write_generated_cifar10(folder.path(), {.train_images = 20, .test_images = 1});
  const Cifar10 set(folder.path(), {.seed = 4}), again(folder.path(), {.seed = 4}), other(folder.path(), {.seed = 5});
  EXPECT_EQ(sample(set, 7, 3), sample(again, 7, 3));
  EXPECT_NE(sample(set, 7, 3), sample(set, 7, 4));
  EXPECT_NE(sample(set, 7, 3), sample(other, 7, 3));
}

TEST(Cifar10, DistortionHasStreamsOfItsOwn) {
  const Folder folder;
  write_generated_cifar10(folder.path(), {.train_images = 20, .test_images = 1});
  const Cifar10 set(folder.path(), {.seed = 4});
  std::ifstream file(folder.file("data_batch_1.bin"), std::ios::binary);
  std::vector<std::uint8_t> record(3073);
  for (std::int64_t index = 0; index < 20; ++index) {
    file.read(reinterpret_cast<char*>(record.data()), static_cast<std::streamsize>(record.size()));
    const auto distorted = [&](RandomUse use, std::uint64_t number) {
      std::vector<float> out(24 * 24 * 3);
      Philox random(4, random_stream(use, number));
      distort_picture({record.data() + 1, 32}, 24, random, out);
      standardise(out);
      return out;
    };
    const auto number = static_cast<std::uint64_t>(index);
    EXPECT_EQ(sample(set, index, 0), distorted(RandomUse::kDistortion, number)) << index;
    EXPECT_NE(sample(set, index, 0), distorted(RandomUse::kWeights, number)) << "the numbers of weight tensor " << index;
    EXPECT_EQ(sample(set, index, 6), distorted(RandomUse::kDistortion, (std::uint64_t{6} << 32) + number)) << index;
  }
}

TEST(Distort, StaysWithinItsBounds) {
  std::vector<std::uint8_t> pixels(3 * 32 * 32);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(100 + i % 32);  // 100..131 along each row
  std::vector<float> out(24 * 24 * 3);
  bool flipped = false, straight = false;
  for (std::uint64_t stream = 0; stream < 200; ++stream) {
    Philox random(1, stream);
    distort_picture({pixels.data(), 32}, 24, random, out);
    const float step = out[3] - out[0];
    (step < 0 ? flipped : straight) = true;
    EXPECT_GE(std::abs(step), 0.2f - 1e-3f);
    EXPECT_LE(std::abs(step), 1.8f + 1e-3f);
    const float mean = std::accumulate(out.begin(), out.end(), 0.f) / static_cast<float>(out.size());
    EXPECT_GE(mean, 111.5f - 64);
    EXPECT_LE(mean, 119.5f + 64);
  }
  EXPECT_TRUE(flipped && straight);
}

TEST(Cifar10, DamagedFilesAreNamed) {
  const Folder folder;
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {}); }).find("no data_batch_*.bin"), std::string::npos);
  write_generated_cifar10(folder.path(), {.train_images = 5, .test_images = 2});
  fs::resize_file(folder.file("data_batch_1.bin"), 5 * 3073 - 1);
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {}); }).find("15364 bytes are no whole number of 3073-byte"), std::string::npos);
  fs::resize_file(folder.file("data_batch_1.bin"), 0);
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {}); }).find("data_batch_1.bin: 0 bytes"), std::string::npos);
  std::fstream(folder.file("test_batch.bin"), std::ios::in | std::ios::out | std::ios::binary).seekp(3073) << char{10};
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {.train = false}); }).find("test_batch.bin: record 1 has label 10"), std::string::npos);
  fs::remove(folder.file("test_batch.bin"));
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {.train = false}); }).find("test_batch.bin: cannot be opened"), std::string::npos);
  EXPECT_NE(message_of([&] { find_cifar10(folder.path() + "/nowhere"); }).find("nowhere: holds no CIFAR-10"), std::string::npos);
}

TEST(GeneratedSet, IsAPureFunctionOfItsArguments) {
  const Folder a, b, c;
  write_generated_cifar10(a.path(), {.train_images = 20, .test_images = 5, .seed = 1});
  write_generated_cifar10(b.path(), {.train_images = 20, .test_images = 5, .seed = 1});
  write_generated_cifar10(c.path(), {.train_images = 20, .test_images = 5, .seed = 2});
  const auto read = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(read(a.file("data_batch_1.bin")), read(b.file("data_batch_1.bin")));
  EXPECT_EQ(read(a.file("test_batch.bin")), read(b.file("test_batch.bin")));
  EXPECT_NE(read(a.file("test_batch.bin")), read(c.file("test_batch.bin")));
  EXPECT_EQ(fs::file_size(a.file("data_batch_1.bin")), 20u * 3073);
}

// Softmax regression on what the network sees: if it did well, the set would prove nothing about the network.
TEST(GeneratedSet, ALinearModelCannotSeparateIt) {
  const Folder folder;
  write_generated_cifar10(folder.path(), {.train_images = 2000, .test_images = 500});
  const Cifar10 train(folder.path(), {.distort = false}), test(folder.path(), {.train = false, .distort = false});
  constexpr std::size_t kPixels = 24 * 24 * 3;
  std::vector<float> weights(10 * kPixels);
  std::vector<float> scores(10);
  const auto score = [&](const std::vector<float>& x) {
    for (std::size_t k = 0; k < 10; ++k)
      scores[k] = std::inner_product(x.begin(), x.end(), weights.begin() + static_cast<std::ptrdiff_t>(k * kPixels), 0.f);
  };
  for (int epoch = 0; epoch < 8; ++epoch)
    for (std::int64_t i = 0; i < train.size(); ++i) {
      std::int64_t label = 0;
      const std::vector<float> x = sample(train, i, 0, &label);
      score(x);
      const float top = *std::max_element(scores.begin(), scores.end());
      float sum = 0;
      for (float& s : scores) sum += s = std::exp(s - top);
      for (std::size_t k = 0; k < 10; ++k) {
        const float step = 1e-3f * (scores[k] / sum - (static_cast<std::int64_t>(k) == label ? 1.f : 0.f));
        for (std::size_t p = 0; p < kPixels; ++p) weights[k * kPixels + p] -= step * x[p];
      }
    }
  int correct = 0;
  for (std::int64_t i = 0; i < test.size(); ++i) {
    std::int64_t label = 0;
    score(sample(test, i, 0, &label));
    correct += std::max_element(scores.begin(), scores.end()) - scores.begin() == label;
  }
  EXPECT_LT(correct, 300) << "of 500: below 60 %";
}

}  // namespace
}  // namespace lockstep::data
