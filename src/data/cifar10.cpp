#include "lockstep/data/cifar10.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/data/augment.h"
#include "src/data/cifar10_format.h"
#include "src/data/mapped_file.h"

namespace lockstep::data {

namespace fs = std::filesystem;

namespace {

bool is_training_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.rfind("data_batch_", 0) == 0 && path.extension() == ".bin";
}

std::vector<std::string> training_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure))
    if (is_training_file(entry.path())) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());  // the order of a folder is no order
  return files;
}

void check(const MappedFile& file) {
  const auto bytes = file.bytes();
  if (bytes.empty() || bytes.size() % kCifar10RecordBytes != 0)
    throw FileError("{}: {} bytes are no whole number of {}-byte CIFAR-10 records: is the file truncated?", file.path(), bytes.size(),
                    kCifar10RecordBytes);
  for (std::size_t record = 0; record < bytes.size() / kCifar10RecordBytes; ++record)
    if (const int label = bytes[record * kCifar10RecordBytes]; label >= kCifar10Classes)
      throw FileError("{}: record {} has label {}, expected 0..{}: is the file damaged?", file.path(), record, label, kCifar10Classes - 1);
}

std::string folder_within(const std::string& folder) {
  for (const std::string& candidate :
       {folder, (fs::path(folder) / "cifar10").string(), (fs::path(folder) / "cifar-10-batches-bin").string()})
    if (!training_files(candidate).empty()) return candidate;
  return "";
}

}  // namespace

class Cifar10::Impl {
 public:
  Impl(const std::string& folder, const Cifar10Options& options) : options_(options) {
    std::vector<std::string> names = {(fs::path(folder) / "test_batch.bin").string()};
    if (options.train) names = training_files(folder);
    if (names.empty()) throw FileError("{}: there is no data_batch_*.bin in this folder", folder);
    for (const std::string& name : names) {
      const MappedFile& file = files_.emplace_back(name);
      check(file);
      add_records(file.bytes());
    }
  }
  Impl(const GeneratedCifar10& what, const Cifar10Options& options) : options_(options), generated_(generate_cifar10(what, options.train)) {
    add_records(generated_);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(records_.size()); }

  void read(std::int64_t index, std::int64_t epoch, std::span<float> input, std::int64_t& target) const {
    const std::uint8_t* record = records_.at(static_cast<std::size_t>(index));
    target = record[0];
    const Augmentation how = augmentation_of(index, epoch);
    Device& cpu = cpu_device();
    cpu.kernels().families.get<AugmentKernels>().augment({1, kCifar10Side, kCrop}, record + 1, &how, input.data(), cpu.default_stream());
  }

  void read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how, std::int64_t& target) const {
    const std::uint8_t* record = records_.at(static_cast<std::size_t>(index));
    target = record[0];
    how = augmentation_of(index, epoch);
    std::copy_n(record + 1, planes.size(), planes.begin());
  }

 private:
  void add_records(std::span<const std::uint8_t> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += kCifar10RecordBytes) records_.push_back(bytes.data() + at);
  }

  Augmentation augmentation_of(std::int64_t index, std::int64_t epoch) const {
    if (!options_.augment) return centre_crop(kCifar10Side, kCrop);
    // 2^28 epochs of 2^32 samples: each has a stream of its own.
    const std::uint64_t number = (static_cast<std::uint64_t>(epoch) << 32) + static_cast<std::uint64_t>(index);
    Philox random(options_.seed, random_stream(RandomUse::kAugmentation, number));
    return draw_augmentation(kCifar10Side, kCrop, random);
  }

  const Cifar10Options options_;
  std::vector<MappedFile> files_;
  std::vector<std::uint8_t> generated_;
  std::vector<const std::uint8_t*> records_;
};

Cifar10::Cifar10(const std::string& folder, const Cifar10Options& options) : impl_(std::make_unique<Impl>(folder, options)) {}
Cifar10::Cifar10(const GeneratedCifar10& what, const Cifar10Options& options) : impl_(std::make_unique<Impl>(what, options)) {}
Cifar10::~Cifar10() = default;
std::int64_t Cifar10::size() const { return impl_->size(); }
std::int64_t Cifar10::side() const { return kCifar10Side; }
void Cifar10::read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                         std::int64_t& target) const {
  impl_->read_image(index, epoch, planes, how, target);
}
void Cifar10::read(std::int64_t index, std::int64_t epoch, std::span<float> input, std::int64_t& target) const {
  impl_->read(index, epoch, input, target);
}

std::string find_cifar10(const std::string& wanted) {
  if (!wanted.empty()) {
    const std::string found = folder_within(wanted);
    if (found.empty())
      throw FileError("{}: holds no CIFAR-10 (data_batch_*.bin), nor do its folders cifar10 and cifar-10-batches-bin", wanted);
    return found;
  }
  const auto shared = env::text(env::kData);
  return shared ? folder_within(*shared) : "";
}

}  // namespace lockstep::data
