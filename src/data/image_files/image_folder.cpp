#include "lockstep/data/image_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/data/files.h"
#include "src/data/image_files/decode_image.h"
#include "src/data/image_files/image_part.h"
#include "src/data/sets/sample_stream.h"

namespace lockstep::data {

namespace {

bool has_image_name(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char letter) { return letter >= 'A' && letter <= 'Z' ? letter - 'A' + 'a' : letter; });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

void check_between(const char* what, float value, float low, float high) {
  if (!(value >= low && value <= high))
    throw InvalidArgument("ImageFolder: {} is {}, expected a number from {} to {}", what, value, low, high);
}

const ImageFolderOptions& checked(const ImageFolderOptions& options) {
  if (options.size < 1 || options.size > (1 << 14))
    throw InvalidArgument("ImageFolder: size is {}, expected a number of pixels from 1 to {}", options.size, 1 << 14);
  if (options.max_pixels < 1)
    throw InvalidArgument("ImageFolder: max_pixels is {}, expected 1 or more", options.max_pixels);
  check_between("resize", options.resize, 1, 16);
  check_between("scale_low", options.scale_low, 1e-6f, 1);
  check_between("scale_high", options.scale_high, options.scale_low, 1);
  check_between("ratio_low", options.ratio_low, 1e-3f, 1e3f);
  check_between("ratio_high", options.ratio_high, options.ratio_low, 1e3f);
  check_between("flip", options.flip, 0, 1);
  check_between("brightness", options.brightness, 0, 1);
  check_between("contrast", options.contrast, 0, 1);
  check_between("saturation", options.saturation, 0, 1);
  return options;
}

// The largest part in the centre whose shape is allowed, where no random one fits.
ImagePart central_part(std::int64_t height, std::int64_t width, const ImageFolderOptions& options) {
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  ImagePart part{0, 0, height, width};
  if (ratio < options.ratio_low)
    part.height = std::lround(static_cast<double>(width) / options.ratio_low);
  else if (ratio > options.ratio_high)
    part.width = std::lround(static_cast<double>(height) * options.ratio_high);
  part.height = std::clamp<std::int64_t>(part.height, 1, height);
  part.width = std::clamp<std::int64_t>(part.width, 1, width);
  part.top = (height - part.height) / 2;
  part.left = (width - part.width) / 2;
  return part;
}

ImagePart random_part(std::int64_t height, std::int64_t width, const ImageFolderOptions& options, Philox& random) {
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double wanted = area * random.uniform(options.scale_low, options.scale_high);
    const double ratio = std::exp(random.uniform(std::log(options.ratio_low), std::log(options.ratio_high)));
    const std::int64_t part_width = std::lround(std::sqrt(wanted * ratio)),
                       part_height = std::lround(std::sqrt(wanted / ratio));
    if (part_width < 1 || part_width > width || part_height < 1 || part_height > height) continue;
    const auto top = random.below(static_cast<std::uint32_t>(height - part_height + 1));
    const auto left = random.below(static_cast<std::uint32_t>(width - part_width + 1));
    return {top, left, part_height, part_width};
  }
  return central_part(height, width, options);
}

// The centre of the image whose shorter side is size * resize, as torchvision's Resize and CenterCrop take it.
Tensor centre_of(const Tensor& image, const ImageFolderOptions& options) {
  const std::int64_t height = image.shape()[0], width = image.shape()[1], shorter = std::min(height, width);
  const auto wanted = std::max<std::int64_t>(
      std::lround(static_cast<double>(options.size) * static_cast<double>(options.resize)), options.size);
  const auto longer = static_cast<std::int64_t>(
      static_cast<double>(wanted) * static_cast<double>(std::max(height, width)) / static_cast<double>(shorter));
  const ImageExtents resized = height <= width ? ImageExtents{wanted, longer} : ImageExtents{longer, wanted};
  const auto margin = [&](std::int64_t extent) {  // half pixels are rounded to even, as Python does
    return static_cast<std::int64_t>(std::nearbyint(static_cast<double>(extent - options.size) / 2));
  };
  return resize_part(image, resized, {margin(resized.height), margin(resized.width), options.size, options.size});
}

float grey_of(const float* pixel) { return 0.299f * pixel[0] + 0.587f * pixel[1] + 0.114f * pixel[2]; }

// value = grey + (value - grey) * factor, within 0..255.
void stretch(float* pixel, float grey, float factor) {
  for (int channel = 0; channel < 3; ++channel)
    pixel[channel] = std::clamp(grey + (pixel[channel] - grey) * factor, 0.0f, 255.0f);
}

// `pixels`: (size * size, 3), values in 0..255.
void change_colours(std::span<float> pixels, const ImageFolderOptions& options, Philox& random) {
  const auto factor = [&](float reach) { return random.uniform(1 - reach, 1 + reach); };
  if (options.brightness != 0) {
    const float by = factor(options.brightness);
    for (std::size_t i = 0; i < pixels.size(); i += 3) stretch(&pixels[i], 0, by);
  }
  if (options.contrast != 0) {
    const float by = factor(options.contrast);
    double sum = 0;
    for (std::size_t i = 0; i < pixels.size(); i += 3) sum += grey_of(&pixels[i]);
    const auto mean = static_cast<float>(sum / static_cast<double>(pixels.size() / 3));
    for (std::size_t i = 0; i < pixels.size(); i += 3) stretch(&pixels[i], mean, by);
  }
  if (options.saturation != 0) {
    const float by = factor(options.saturation);
    for (std::size_t i = 0; i < pixels.size(); i += 3) stretch(&pixels[i], grey_of(&pixels[i]), by);
  }
}

// Values in 0..255 to what the model sees.
void normalize_pixels(std::span<float> pixels, const ImageNormalization& by) {
  if (by.kind == ImageNormalization::Kind::kPerChannel) {
    for (std::size_t i = 0; i < pixels.size(); ++i)
      pixels[i] = (pixels[i] / 255 - by.mean[i % 3]) / by.deviation[i % 3];
    return;
  }
  double sum = 0, squares = 0;
  for (const float value : pixels) sum += value;
  const double count = static_cast<double>(pixels.size()), mean = sum / count;
  for (const float value : pixels) squares += (value - mean) * (value - mean);
  const double deviation = std::max(std::sqrt(squares / count), 1 / std::sqrt(count));
  for (float& value : pixels) value = static_cast<float>((value - mean) / deviation);
}

}  // namespace

struct ImageFolder::List {
  std::vector<std::string> classes;
  std::vector<std::string> paths;
  std::vector<std::int64_t> labels;
};

ImageFolder::ImageFolder(const std::string& folder, const ImageFolderOptions& options) : options_(checked(options)) {
  namespace fs = std::filesystem;
  const auto list = std::make_shared<List>();
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (entry.is_directory()) list->classes.push_back(entry.path().filename().string());
    std::sort(list->classes.begin(), list->classes.end());
    if (list->classes.empty())
      throw FileError("{}: has no folders: expected one for each class, with images in it", folder);
    for (std::size_t label = 0; label < list->classes.size(); ++label) {
      std::vector<std::string> paths;
      const fs::path class_folder = fs::path(folder) / list->classes[label];
      for (const fs::directory_entry& entry :
           fs::recursive_directory_iterator(class_folder, fs::directory_options::follow_directory_symlink))
        if (entry.is_regular_file() && has_image_name(entry.path())) paths.push_back(entry.path().string());
      if (paths.empty())
        throw FileError("{}: has no images: expected files that end in .jpg, .jpeg or .png", class_folder.string());
      std::sort(paths.begin(), paths.end());
      list->labels.insert(list->labels.end(), paths.size(), static_cast<std::int64_t>(label));
      list->paths.insert(list->paths.end(), paths.begin(), paths.end());
    }
  } catch (const fs::filesystem_error& error) {
    throw FileError("{}: cannot list the folder: {}", folder, error.code().message());
  }
  list_ = list;
}

std::int64_t ImageFolder::size() const { return static_cast<std::int64_t>(list_->paths.size()); }
const std::vector<std::string>& ImageFolder::classes() const { return list_->classes; }

const std::string& ImageFolder::path(std::int64_t index) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("ImageFolder: sample {} does not exist; the set has {}", index, size());
  return list_->paths[static_cast<std::size_t>(index)];
}

std::int64_t ImageFolder::label(std::int64_t index) const {
  path(index);
  return list_->labels[static_cast<std::size_t>(index)];
}

std::vector<TensorSpec> ImageFolder::element_spec() const {
  return {{{options_.size, options_.size, 3}, DType::kFloat32}, {Shape(), DType::kInt64}};
}

void ImageFolder::read(std::int64_t index, std::int64_t epoch, const Row& row) const {
  const Tensor image = read_image(path(index), options_.max_pixels);
  Philox random(options_.seed, augmentation_stream(index, epoch));
  const Tensor square =
      options_.augment ? resize_image(cut(image, random_part(image.shape()[0], image.shape()[1], options_, random)),
                                      options_.size, options_.size)
                       : centre_of(image, options_);
  const bool mirrored = options_.augment && random.uniform() < options_.flip;
  const auto from = square.span<std::uint8_t>();
  const auto to = row.span<float>(0);
  for (std::int64_t y = 0; y < options_.size; ++y)
    for (std::int64_t x = 0; x < options_.size; ++x)
      for (std::int64_t channel = 0; channel < 3; ++channel)
        to[static_cast<std::size_t>((y * options_.size + x) * 3 + channel)] = static_cast<float>(
            from[static_cast<std::size_t>((y * options_.size + (mirrored ? options_.size - 1 - x : x)) * 3 + channel)]);
  if (options_.augment) change_colours(to, options_, random);
  normalize_pixels(to, options_.normalization);
  row.value<std::int64_t>(1) = label(index);
}

Tensor read_image(const std::string& path, std::int64_t max_pixels) {
  return decode_image(read_file(path), path, max_pixels);
}

}  // namespace lockstep::data
