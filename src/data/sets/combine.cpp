#include "lockstep/data/combine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "lockstep/core/error.h"
#include "src/data/loading/stack.h"
#include "src/data/samplers/shuffle.h"
#include "src/data/sets/sample_stream.h"

namespace lockstep::data {

namespace {

void check_index(const char* set, std::int64_t index, std::int64_t size) {
  if (index < 0 || index >= size)
    throw InvalidArgument("{}: sample {} does not exist; the set has {}", set, index, size);
}

}  // namespace

void KeptDataset::check() const {
  if (!set_) throw InvalidArgument("KeptDataset: the std::shared_ptr holds no data set");
}

TensorDataset::TensorDataset(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw InvalidArgument("TensorDataset: at least one tensor is needed");
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorSpec spec = spec_of(tensors_[i]);
    if (spec.shape.dims() == 0 || spec.shape[0] != tensors_[0].shape()[0])
      throw InvalidArgument(
          "TensorDataset: tensor {} is {}, but tensor 0 is {}: their first extents, the samples, must be equal", i,
          spec.shape.text(), tensors_[0].shape().text());
  }
}

std::vector<TensorSpec> TensorDataset::element_spec() const {
  std::vector<TensorSpec> spec;
  for (const Tensor& tensor : tensors_) spec.push_back({Shape(tensor.shape().extents().subspan(1)), tensor.dtype()});
  return spec;
}

void TensorDataset::read(std::int64_t index, std::int64_t, const Row& row) const {
  check_index("TensorDataset", index, size());
  const Row source(tensors_, index, size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto from = source.bytes(i), to = row.bytes(i);
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }
}

// -- map

MappedDataset::MappedDataset(KeptDataset set, Function function, std::uint64_t seed)
    : set_(std::move(set)), function_(std::move(function)), seed_(seed) {
  if (!function_) throw InvalidArgument("map: the function is empty");
}

Sample MappedDataset::get(std::int64_t index, std::int64_t epoch) const {
  // Uses the random streams of image augmentation, far beyond the numbers that augmentation draws.
  constexpr std::uint64_t kFirstBlock = std::uint64_t{1} << 32;
  Philox random(seed_, augmentation_stream(index, epoch), kFirstBlock);
  return function_(set_->get(index, epoch), random);
}

MappedDataset map(KeptDataset set, std::function<Sample(Sample)> function) {
  if (!function) throw InvalidArgument("map: the function is empty");
  return {std::move(set),
          [function = std::move(function)](Sample sample, Philox&) { return function(std::move(sample)); }, 0};
}

MappedDataset map(KeptDataset set, MappedDataset::Function function, std::uint64_t seed) {
  return {std::move(set), std::move(function), seed};
}

// -- cache

// Two threads may read the same sample at the same time; the first to finish stores it.
struct CachedDataset::State {
  explicit State(KeptDataset kept) : set(std::move(kept)), samples(static_cast<std::size_t>(set->size())) {}
  ~State() {
    for (const auto& sample : samples) delete sample.load();
  }

  const Sample& sample(std::int64_t index) {
    check_index("CachedDataset", index, static_cast<std::int64_t>(samples.size()));
    std::atomic<const Sample*>& place = samples[static_cast<std::size_t>(index)];
    if (const Sample* known = place.load(std::memory_order_acquire)) return *known;
    auto made = std::make_unique<const Sample>(set->get(index, 0));
    const Sample* first = nullptr;
    if (place.compare_exchange_strong(first, made.get(), std::memory_order_acq_rel)) return *made.release();
    return *first;
  }

  const KeptDataset set;
  std::vector<std::atomic<const Sample*>> samples;
};

CachedDataset::CachedDataset(KeptDataset set) : state_(std::make_shared<State>(std::move(set))) {}
std::int64_t CachedDataset::size() const { return static_cast<std::int64_t>(state_->samples.size()); }
std::vector<TensorSpec> CachedDataset::element_spec() const { return state_->set->element_spec(); }

Sample CachedDataset::get(std::int64_t index, std::int64_t) const {
  Sample sample;
  for (const Tensor& tensor : state_->sample(index)) sample.push_back(tensor.clone());
  return sample;
}

void CachedDataset::read(std::int64_t index, std::int64_t, const Row& row) const {
  const Sample& sample = state_->sample(index);
  if (sample.size() != row.size())
    throw InvalidArgument("CachedDataset: get() of its set returned {} tensors, but element_spec() promises {}",
                          sample.size(), row.size());
  for (std::size_t i = 0; i < sample.size(); ++i) {
    if (sample[i].bytes() != row.bytes(i).size())
      throw InvalidArgument("CachedDataset: get() of its set returned {} as tensor {}, but element_spec() promises {}",
                            text_of(spec_of(sample[i])), i, text_of(element_spec()[i]));
    copy_to_row(sample[i], i, row);
  }
}

CachedDataset cache(KeptDataset set) { return CachedDataset(std::move(set)); }

// -- subsets

Subset::Subset(KeptDataset set, std::vector<std::int64_t> indices)
    : set_(std::move(set)), indices_(std::move(indices)) {
  for (const std::int64_t index : indices_) check_index("Subset", index, set_->size());
}

std::int64_t Subset::place(std::int64_t index) const {
  check_index("Subset", index, size());
  return indices_[static_cast<std::size_t>(index)];
}

Sample Subset::get(std::int64_t index, std::int64_t epoch) const { return set_->get(place(index), epoch); }
void Subset::read(std::int64_t index, std::int64_t epoch, const Row& row) const {
  set_->read(place(index), epoch, row);
}
void Subset::read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                        std::int64_t& target) const {
  set_->images()->read_image(place(index), epoch, planes, how, target);
}

namespace {

Subset range_of(const char* operation, KeptDataset set, std::int64_t count, bool after) {
  const std::int64_t size = set->size();
  if (count < 0 || count > size)
    throw InvalidArgument("{}: cannot select {} samples from a set of {}", operation, count, size);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(after ? size - count : count));
  std::iota(indices.begin(), indices.end(), after ? count : 0);
  return {std::move(set), std::move(indices)};
}

}  // namespace

Subset take(KeptDataset set, std::int64_t count) { return range_of("take", std::move(set), count, false); }
Subset skip(KeptDataset set, std::int64_t count) { return range_of("skip", std::move(set), count, true); }

std::vector<Subset> random_split(KeptDataset set, const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0 || size > set->size())
      throw InvalidArgument("random_split: cannot select a part of {} samples from a set of {}", size, set->size());
    total += size;
  }
  if (total != set->size())
    throw InvalidArgument("random_split: the parts have {} samples together, but the set has {}", total, set->size());
  std::vector<std::int64_t> order(static_cast<std::size_t>(total));
  std::iota(order.begin(), order.end(), 0);
  Philox random(seed, random_stream(RandomUse::kOrder, 0),
                std::uint64_t{1} << 40);  // far beyond the numbers of a sampler's epoch 0
  shuffle(order, random);
  std::vector<Subset> parts;
  auto begin = order.begin();
  for (const std::int64_t size : sizes) {
    parts.emplace_back(set, std::vector<std::int64_t>(begin, begin + size));
    begin += size;
  }
  return parts;
}

// -- concatenate

ConcatDataset::ConcatDataset(std::vector<KeptDataset> sets) : sets_(std::move(sets)) {
  if (sets_.empty()) throw InvalidArgument("ConcatDataset: at least one data set is needed");
  for (const KeptDataset& set : sets_) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + set->size());
}

std::pair<const Dataset*, std::int64_t> ConcatDataset::place(std::int64_t index) const {
  check_index("ConcatDataset", index, size());
  const auto set = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return {&*sets_[set], set == 0 ? index : index - ends_[set - 1]};
}

Sample ConcatDataset::get(std::int64_t index, std::int64_t epoch) const {
  const auto [set, number] = place(index);
  return set->get(number, epoch);
}

std::vector<TensorSpec> ConcatDataset::element_spec() const {
  const std::vector<TensorSpec> first = sets_[0]->element_spec();
  const auto has_it = [&](const KeptDataset& set) { return set->element_spec() == first; };
  return std::all_of(sets_.begin(), sets_.end(), has_it) ? first : std::vector<TensorSpec>();
}

void ConcatDataset::read(std::int64_t index, std::int64_t epoch, const Row& row) const {
  const auto [set, number] = place(index);
  set->read(number, epoch, row);
}

ConcatDataset concatenate(std::vector<KeptDataset> sets) { return ConcatDataset(std::move(sets)); }

}  // namespace lockstep::data
