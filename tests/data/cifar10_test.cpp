#include "lockstep/data/cifar10.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <numeric>
#include <set>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/data/combine.h"
#include "lockstep/data/loader.h"
#include "tests/support/message_of.h"
#include "tests/support/sanitized.h"

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

std::vector<float> sample(const Dataset& set, std::int64_t index, std::int64_t epoch, std::int64_t* label = nullptr) {
  const Sample sample = set.get(index, epoch);
  if (label != nullptr) *label = sample[1].span<std::int64_t>()[0];
  const auto input = sample[0].span<float>();
  return {input.begin(), input.end()};
}

std::vector<float> augmented_by(const Augmentation& how, const std::uint8_t* planes) {
  std::vector<float> out(24 * 24 * 3);
  const auto& kernels = cpu_device().kernels().families.get<AugmentKernels>();
  kernels.augment({1, 32, 24}, {}, planes, &how, out.data(), cpu_device().default_stream());
  return out;
}

TEST(Cifar10, ReadsTheRealFilesWhenTheyAreThere) {
  if (std::getenv("LOCKSTEP_DATA") == nullptr) GTEST_SKIP() << "LOCKSTEP_DATA names no folder with CIFAR-10";
  const std::string folder = find_cifar10("");
  ASSERT_FALSE(folder.empty());
  const Cifar10 train(folder, {}), test(folder, {.train = false, .augment = false});
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
  const Cifar10 set(folder.path(), {.augment = false});
  std::int64_t label = -1;
  const std::vector<float> image = sample(set, 0, 0, &label);
  EXPECT_EQ(label, record[0]);
  double mean = 0, square = 0;
  for (const float value : image) mean += value, square += double{value} * value;
  EXPECT_NEAR(mean / 1728, 0, 1e-5);
  EXPECT_NEAR(square / 1728, 1, 1e-4);
  // Checks two pixels of the centre crop in each channel, in the order of the file's bytes.
  const auto byte_at = [&](int row, int column, int channel) {
    return static_cast<unsigned char>(
        record[static_cast<std::size_t>(1 + channel * 1024 + (row + 4) * 32 + column + 4)]);
  };
  for (int channel = 0; channel < 3; ++channel) {
    const float a = image[static_cast<std::size_t>((2 * 24 + 5) * 3 + channel)],
                b = image[static_cast<std::size_t>((17 * 24 + 20) * 3 + channel)];
    EXPECT_EQ(a < b, byte_at(2, 5, channel) < byte_at(17, 20, channel));
  }
}

TEST(Cifar10, AugmentationIsAPureFunctionOfSampleEpochAndSeed) {
  const Folder folder;
  write_generated_cifar10(folder.path(), {.train_images = 20, .test_images = 1});
  const Cifar10 set(folder.path(), {.seed = 4}), again(folder.path(), {.seed = 4}), other(folder.path(), {.seed = 5});
  EXPECT_EQ(sample(set, 7, 3), sample(again, 7, 3));
  EXPECT_NE(sample(set, 7, 3), sample(set, 7, 4));
  EXPECT_NE(sample(set, 7, 3), sample(other, 7, 3));
}

TEST(Cifar10, AugmentationHasItsOwnStreams) {
  const Folder folder;
  write_generated_cifar10(folder.path(), {.train_images = 20, .test_images = 1});
  const Cifar10 set(folder.path(), {.seed = 4});
  std::ifstream file(folder.file("data_batch_1.bin"), std::ios::binary);
  std::vector<std::uint8_t> record(3073);
  for (std::int64_t index = 0; index < 20; ++index) {
    file.read(reinterpret_cast<char*>(record.data()), static_cast<std::streamsize>(record.size()));
    const auto augmented = [&](RandomUse use, std::uint64_t number) {
      Philox random(4, random_stream(use, number));
      return augmented_by(draw_augmentation(ImageAugmentation::tutorial(), 32, random), record.data() + 1);
    };
    const auto number = static_cast<std::uint64_t>(index);
    EXPECT_EQ(sample(set, index, 0), augmented(RandomUse::kAugmentation, number)) << index;
    EXPECT_NE(sample(set, index, 0), augmented(RandomUse::kWeights, number))
        << "the numbers of weight tensor " << index;
    EXPECT_EQ(sample(set, index, 6), augmented(RandomUse::kAugmentation, (std::uint64_t{6} << 32) + number)) << index;
  }
}

TEST(Augment, DrawsWithinItsBounds) {
  std::set<std::int32_t> tops, lefts, mirrored;
  float darkest = 0, brightest = 0, flattest = 1, strongest = 1;
  for (std::uint64_t stream = 0; stream < 500; ++stream) {
    Philox random(1, stream);
    const Augmentation how = draw_augmentation(ImageAugmentation::tutorial(), 32, random);
    tops.insert(how.top), lefts.insert(how.left), mirrored.insert(how.mirrored);
    darkest = std::min(darkest, how.brightness), brightest = std::max(brightest, how.brightness);
    flattest = std::min(flattest, how.contrast), strongest = std::max(strongest, how.contrast);
  }
  const std::set<std::int32_t> places = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(tops, places);
  EXPECT_EQ(lefts, places);
  EXPECT_EQ(mirrored, (std::set<std::int32_t>{0, 1}));
  EXPECT_TRUE(darkest >= -63 && darkest < -60 && brightest <= 63 && brightest > 60) << darkest << " " << brightest;
  EXPECT_TRUE(flattest >= 0.2f && flattest < 0.25f && strongest <= 1.8f && strongest > 1.75f)
      << flattest << " " << strongest;
}

// Compares with the formula computed per image in double precision.
TEST(Augment, ChangesBrightnessAndContrastOfEachChannelAndStandardises) {
  std::vector<std::uint8_t> pixels(3 * 32 * 32);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>((i * 7 + i / 1024 * 60) % 199);
  for (const Augmentation& how :
       {Augmentation{0, 8, 0, -40, 1.7f}, Augmentation{5, 3, 1, 25.5f, 0.3f}, Augmentation{8, 0, 1, 0, 1}}) {
    std::vector<double> expected(24 * 24 * 3);
    for (int channel = 0; channel < 3; ++channel) {
      double mean = how.brightness;
      for (int row = 0; row < 24; ++row)
        for (int column = 0; column < 24; ++column) {
          const int from = how.left + (how.mirrored != 0 ? 23 - column : column);
          double& value = expected[static_cast<std::size_t>((row * 24 + column) * 3 + channel)];
          value = pixels[static_cast<std::size_t>(channel * 1024 + (row + how.top) * 32 + from)];
          mean += value / (24 * 24);
        }
      for (std::size_t i = static_cast<std::size_t>(channel); i < expected.size(); i += 3)
        expected[i] = (expected[i] + how.brightness - mean) * how.contrast + mean;
    }
    const auto count = static_cast<double>(expected.size());
    double mean = 0, squares = 0;
    for (const double value : expected) mean += value / count;
    for (const double value : expected) squares += (value - mean) * (value - mean);
    const std::vector<float> actual = augmented_by(how, pixels.data());
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(actual[i], (expected[i] - mean) / std::sqrt(squares / count), 2e-5) << i;
  }
}

TEST(Augment, DrawsPaddedCropsForResnets) {
  std::set<std::int32_t> tops, lefts, mirrored;
  for (std::uint64_t stream = 0; stream < 500; ++stream) {
    Philox random(1, stream);
    const Augmentation how = draw_augmentation(ImageAugmentation::resnet(), 32, random);
    tops.insert(how.top), lefts.insert(how.left), mirrored.insert(how.mirrored);
    EXPECT_TRUE(how.brightness == 0 && how.contrast == 1);
  }
  const std::set<std::int32_t> places = {-4, -3, -2, -1, 0, 1, 2, 3, 4};
  EXPECT_EQ(tops, places);
  EXPECT_EQ(lefts, places);
  EXPECT_EQ(mirrored.size(), 2u);
  Philox random(1, 0);
  const Augmentation centre = draw_augmentation(ImageAugmentation::centre(24), 32, random);
  EXPECT_TRUE(centre.top == 4 && centre.left == 4 && centre.mirrored == 0);
}

// A crop beyond the upper left corner has black rows and columns before the image. Checked before standardisation.
TEST(Augment, IsBlackOutsideTheImage) {
  const std::vector<std::uint8_t> planes = {10, 20, 30, 40,  50,  60,
                                            70, 80, 90, 100, 110, 120};  // three planes of 2 x 2
  for (const std::int32_t mirrored : {0, 1}) {
    const Augmentation how{-1, -1, mirrored, 0, 1};
    std::vector<float> out(2 * 2 * 3);
    cpu_device().kernels().families.get<AugmentKernels>().augment({1, 2, 2}, {}, planes.data(), &how, out.data(),
                                                                  cpu_device().default_stream());
    const std::size_t pixel = mirrored == 0 ? 3 : 2;  // position of the image's first pixel
    std::vector<double> expected(12);
    for (std::size_t channel = 0; channel < 3; ++channel) expected[pixel * 3 + channel] = planes[channel * 4];
    const double mean = (10. + 50 + 90) / 12;
    double squares = 0;
    for (const double value : expected) squares += (value - mean) * (value - mean);
    for (std::size_t i = 0; i < 12; ++i) EXPECT_NEAR(out[i], (expected[i] - mean) / std::sqrt(squares / 12), 1e-5) << i;
  }
}

TEST(Augment, NormalisesByGivenMeansAndDeviations) {
  const std::array<float, 3> mean = {0.4914F, 0.4822F, 0.4465F}, deviation = {0.2470F, 0.2435F, 0.2616F};
  const GeneratedCifar10 few{.train_images = 3, .test_images = 1};
  const auto recipe = ImageAugmentation::centre(32, normalize_channels({0, 0, 0}, {1, 1, 1}));
  const Cifar10 plain(few, {.augmentation = recipe});
  const Cifar10 normalised(few, {.augmentation = ImageAugmentation::centre(32, normalize_channels(mean, deviation))});
  const Subset part = take(normalised, 2);
  EXPECT_EQ(part.normalization().deviation[2], deviation[2]);
  for (std::int64_t index = 0; index < 2; ++index) {
    const std::vector<float> values = sample(plain, index, 0);
    const Tensor inputs = part.get(index, 0)[0];
    const auto found = inputs.span<float>();
    EXPECT_GE(*std::min_element(values.begin(), values.end()), 0);
    EXPECT_LE(*std::max_element(values.begin(), values.end()), 1);
    EXPECT_GT(*std::max_element(values.begin(), values.end()), 0.1F);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(found[i], (double{values[i]} - mean[i % 3]) / deviation[i % 3], 1e-5) << i;
  }
}

TEST(Augment, EvaluationHasTheNormalizationOfTraining) {
  const GeneratedCifar10 few{.train_images = 1, .test_images = 2};
  ImageAugmentation recipe = ImageAugmentation::resnet();
  recipe.normalization = normalize_channels({0.5F, 0.5F, 0.5F}, {0.25F, 0.25F, 0.25F});
  const Cifar10 test(few, {.train = false, .augment = false, .augmentation = recipe});
  const std::vector<float> found = sample(test, 1, 0);
  EXPECT_LE(*std::max_element(found.begin(), found.end()), 2);
  EXPECT_GE(*std::min_element(found.begin(), found.end()), -2);
  EXPECT_EQ(test.normalization().mean[0], 0.5F);
}

TEST(Augment, RefusesInvalidRecipes) {
  const GeneratedCifar10 few{.train_images = 2, .test_images = 1};
  EXPECT_NE(message_of([&] {
              Cifar10(few, {.augmentation = {.crop = 41, .padding = 4}});
            }).find("a crop of 41 does not fit into images of side 32"),
            std::string::npos);
  EXPECT_NE(message_of([&] { Cifar10(few, {.augmentation = {.contrast_low = 2}}); }).find("contrast 2 to 1"),
            std::string::npos);
  EXPECT_NE(message_of([&] { Cifar10(few, {.augmentation = {.padding = std::int64_t{1} << 31}}); }).find("padding"),
            std::string::npos);
  EXPECT_NE(message_of([&] { Cifar10(few, {.augmentation = {.brightness = INFINITY}}); }).find("brightness inf"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              normalize_channels({0, 0, 0}, {1, 0, 1});
            }).find("deviation 0 of channel 1"),
            std::string::npos);
  const Cifar10 whole(few, {.augmentation = ImageAugmentation::resnet()});
  EXPECT_EQ(whole.get(0, 0)[0].shape(), (Shape{32, 32, 3}));
}

// In-memory images get the same augmentation as Cifar10's.
TEST(ImageTensors, AreAugmentedAsCifar10Is) {
  const Folder folder;
  write_generated_cifar10(folder.path(), {.train_images = 5, .test_images = 1});
  std::ifstream file(folder.file("data_batch_1.bin"), std::ios::binary);
  const Tensor images = Tensor::empty({5, 3, 32, 32}, DType::kUInt8), labels = Tensor::empty({5}, DType::kInt64);
  for (std::int64_t i = 0; i < 5; ++i) {
    labels.span<std::int64_t>()[static_cast<std::size_t>(i)] = file.get();
    file.read(reinterpret_cast<char*>(images.data<std::uint8_t>() + i * 3072), 3072);
  }
  const Cifar10 expected(folder.path(), {.seed = 4});
  const ImageTensors actual(images, labels, ImageAugmentation::tutorial(), 4);
  ASSERT_EQ(actual.size(), 5);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(sample(actual, i, 2), sample(expected, i, 2)) << i;
  EXPECT_NE(message_of([&] {
              ImageTensors(images, Tensor::zeros({4}, DType::kInt64));
            }).find("(5, 3, 32, 32) uint8 and (4) int64"),
            std::string::npos);
  EXPECT_NE(message_of([&] { actual.get(5, 0); }).find("sample 5 does not exist; the set has 5"), std::string::npos);
}

// Opening a FIFO blocks until another process opens its other end; the constructor must not.
TEST(Cifar10, RefusesSpecialFilesWithoutBlocking) {
  const Folder folder;
  const std::string path = folder.file("data_batch_1.bin");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto answer = std::async(std::launch::async, [&] { return message_of([&] { Cifar10(folder.path(), {}); }); });
  if (answer.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
    ADD_FAILURE() << "it blocks on the FIFO";
    ::close(::open(path.c_str(), O_RDWR | O_NONBLOCK));
  }
  EXPECT_EQ(answer.get().rfind(path + ": is a FIFO", 0), 0u);
  fs::remove(path);
  fs::create_symlink("/dev/zero", path);
  EXPECT_EQ(message_of([&] { Cifar10(folder.path(), {}); }).rfind(path + ": is a character device", 0), 0u);
}

TEST(Cifar10, ErrorsNameDamagedFiles) {
  const Folder folder;
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {}); }).find("no data_batch_*.bin"), std::string::npos);
  write_generated_cifar10(folder.path(), {.train_images = 5, .test_images = 2});
  fs::resize_file(folder.file("data_batch_1.bin"), 5 * 3073 - 1);
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {}); }).find("15364 bytes are not a multiple of the 3073-byte"),
            std::string::npos);
  fs::resize_file(folder.file("data_batch_1.bin"), 0);
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {}); }).find("data_batch_1.bin: 0 bytes"), std::string::npos);
  std::fstream(folder.file("test_batch.bin"), std::ios::in | std::ios::out | std::ios::binary).seekp(3073) << char{10};
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {.train = false}); }).find("test_batch.bin: record 1 has label 10"),
            std::string::npos);
  fs::remove(folder.file("test_batch.bin"));
  EXPECT_NE(message_of([&] { Cifar10(folder.path(), {.train = false}); }).find("test_batch.bin: cannot be opened"),
            std::string::npos);
  EXPECT_NE(message_of([&] { find_cifar10(folder.path() + "/nowhere"); }).find("nowhere: holds no CIFAR-10"),
            std::string::npos);
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

TEST(GeneratedSet, IsTheSameInMemoryAndInFiles) {
  const Folder folder;
  const GeneratedCifar10 what{.train_images = 20, .test_images = 5, .seed = 3};
  write_generated_cifar10(folder.path(), what);
  for (const bool train : {true, false}) {
    const Cifar10 in_files(folder.path(), {.train = train, .seed = 4}), in_memory(what, {.train = train, .seed = 4});
    ASSERT_EQ(in_memory.size(), in_files.size());
    for (std::int64_t i = 0; i < in_files.size(); ++i) EXPECT_EQ(sample(in_memory, i, 1), sample(in_files, i, 1)) << i;
  }
}

// Softmax regression on the network's inputs. If it did well, the set would prove nothing about the network.
TEST(GeneratedSet, ALinearModelCannotSeparateIt) {
  if (lockstep::testing::kSanitized) GTEST_SKIP() << "instrumented code is too slow to train a model";
  const Folder folder;
  write_generated_cifar10(folder.path(), {.train_images = 2000, .test_images = 500});
  const Cifar10 train(folder.path(), {.augment = false}), test(folder.path(), {.train = false, .augment = false});
  constexpr std::size_t kPixels = 24 * 24 * 3;
  std::vector<float> weights(10 * kPixels);
  std::vector<float> scores(10);
  const auto score = [&](const std::vector<float>& x) {
    for (std::size_t k = 0; k < 10; ++k)
      scores[k] =
          std::inner_product(x.begin(), x.end(), weights.begin() + static_cast<std::ptrdiff_t>(k * kPixels), 0.f);
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
