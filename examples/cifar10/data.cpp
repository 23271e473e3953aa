#include "examples/cifar10/data.h"

namespace ls = lockstep;

namespace {

// `source` is a folder, or a generated set. Every rank generates it in memory, so that a killed rank leaves no file.
template <typename Source> Data open_source(const Source& source, const DataOptions& options, const std::string& what) {
  using ls::data::Cifar10;
  Data data{
      std::make_unique<Cifar10>(source, ls::data::Cifar10Options{.augment = options.augment,
                                                                 .seed = options.seed,
                                                                 .augmentation = options.augmentation}),
      std::make_unique<Cifar10>(
          source, ls::data::Cifar10Options{.train = false, .augment = false, .augmentation = options.augmentation}),
      ""};
  data.what = fmt::format("{} ({} training, {} test images)", what, data.train->size(), data.test->size());
  return data;
}

}  // namespace

Data open_data(const DataOptions& options) {
  const std::string folder = options.generated ? "" : ls::data::find_cifar10(options.folder);
  if (!folder.empty()) return open_source(folder, options, "CIFAR-10 in " + folder);
  Data data = open_source(ls::data::GeneratedCifar10{}, options, "generated images of 10 textures");
  if (!options.generated) data.what += "; scripts/fetch-data cifar10 downloads the real ones";
  data.is_generated = true;
  return data;
}
