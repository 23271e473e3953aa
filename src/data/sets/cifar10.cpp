#include "lockstep/data/cifar10.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/process/file_kind.h"
#include "src/data/formats/mapped_file.h"
#include "src/data/sets/cifar10_format.h"

namespace lockstep::data {

namespace fs = std::filesystem;

namespace {

bool is_training_file(const fs::path& path) {
  // Excludes a browser's "data_batch_1 (1).bin", whose images would count twice.
  constexpr std::string_view kBegin = "data_batch_", kEnd = ".bin";
  const std::string name = path.filename().string();
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size()) return false;
  return std::all_of(name.begin() + kBegin.size(), name.end() - kEnd.size(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string> training_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure))
    if (is_training_file(entry.path())) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());  // folder order is arbitrary
  return files;
}

void check(const MappedFile& file) {
  const auto bytes = file.bytes();
  if (bytes.empty() || bytes.size() % kCifar10RecordBytes != 0)
    throw FileError("{}: {} bytes are not a multiple of the {}-byte CIFAR-10 record: is the file truncated?{}",
                    file.path(), bytes.size(), kCifar10RecordBytes, mistaken_download(std::as_bytes(bytes)));
  for (std::size_t record = 0; record < bytes.size() / kCifar10RecordBytes; ++record)
    if (const int label = bytes[record * kCifar10RecordBytes]; label >= kCifar10Classes)
      throw FileError("{}: record {} has label {}, expected 0..{}: is the file damaged?", file.path(), record, label,
                      kCifar10Classes - 1);
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
  Impl(const std::string& folder, const Cifar10Options& options) {
    std::vector<std::string> names = {(fs::path(folder) / "test_batch.bin").string()};
    if (options.train) names = training_files(folder);
    if (names.empty()) throw FileError("{}: there is no data_batch_*.bin in this folder", folder);
    for (const std::string& name : names) {
      const MappedFile& file = files_.emplace_back(name);
      check(file);
      add_records(file.bytes());
    }
  }
  Impl(const GeneratedCifar10& what, const Cifar10Options& options)
      : generated_(generate_cifar10(what, options.train)) {
    add_records(generated_);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(records_.size()); }

  const std::uint8_t* record(std::int64_t index) const { return records_.at(static_cast<std::size_t>(index)); }

 private:
  void add_records(std::span<const std::uint8_t> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += kCifar10RecordBytes) records_.push_back(bytes.data() + at);
  }

  std::vector<MappedFile> files_;
  std::vector<std::uint8_t> generated_;
  std::vector<const std::uint8_t*> records_;
};

namespace {

ImageAugmentation recipe_of(const Cifar10Options& options) {
  return options.augment ? options.augmentation
                         : ImageAugmentation::centre(options.augmentation.crop, options.augmentation.normalization);
}

}  // namespace

Cifar10::Cifar10(const std::string& folder, const Cifar10Options& options)
    : ImageDataset(kCifar10Side, recipe_of(options), options.seed), impl_(std::make_shared<Impl>(folder, options)) {}
Cifar10::Cifar10(const GeneratedCifar10& what, const Cifar10Options& options)
    : ImageDataset(kCifar10Side, recipe_of(options), options.seed), impl_(std::make_shared<Impl>(what, options)) {}
Cifar10::~Cifar10() = default;
std::int64_t Cifar10::size() const { return impl_->size(); }
ImageDataset::Stored Cifar10::stored(std::int64_t index) const {
  const std::uint8_t* const record = impl_->record(index);
  return {record + 1, record[0]};
}

std::string find_cifar10(const std::string& wanted) {
  if (!wanted.empty()) {
    const std::string found = folder_within(wanted);
    if (found.empty())
      throw FileError(
          "{}: holds no CIFAR-10 (data_batch_*.bin), nor do its folders cifar10 and cifar-10-batches-bin; "
          "scripts/fetch-data cifar10 downloads it",
          wanted);
    return found;
  }
  const auto shared = env::text(env::kData);
  return shared ? folder_within(*shared) : "";
}

}  // namespace lockstep::data
