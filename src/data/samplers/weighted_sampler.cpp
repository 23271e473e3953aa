#include "lockstep/data/weighted_sampler.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "lockstep/core/error.h"
#include "lockstep/tensor/random.h"
#include "src/data/loading/fingerprint.h"
#include "src/data/samplers/sum_tree.h"

namespace lockstep::data {

namespace {

double uniform(Philox& random) {  // [0, 1), 53 bits
  const std::uint64_t high = random.next();
  return static_cast<double>((high << 32 | random.next()) >> 11) * 0x1p-53;
}

void check_weights(std::int64_t size, std::span<const double> weights, const Place& place) {
  if (static_cast<std::int64_t>(weights.size()) != size)
    throw InvalidArgument("WeightedSampler: rank {}: {} weights for {} samples: give one weight for each sample",
                          place.rank, weights.size(), size);
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0 && std::isfinite(weights[i])))
      throw InvalidArgument(
          "WeightedSampler: rank {}: the weight of sample {} is {}, expected a finite number of 0 or more", place.rank,
          i, weights[i]);
    sum += weights[i];
  }
  if (!(sum > 0 && std::isfinite(sum)))
    throw InvalidArgument("WeightedSampler: rank {}: the sum of the {} weights is {}: {}", place.rank, weights.size(),
                          sum, sum > 0 ? "give smaller weights" : "at least one weight must be above 0");
}

void check_samples(std::span<const double> weights, const WeightedSamplerOptions& options, const Place& place) {
  if (options.samples < 0)
    throw InvalidArgument(
        "WeightedSampler: rank {}: got {} samples per epoch, expected 0 (as many as the set has) or more", place.rank,
        options.samples);
  if (options.replacement) return;
  const auto drawable = weights.size() - static_cast<std::size_t>(std::count(weights.begin(), weights.end(), 0.0));
  const std::size_t wanted = options.samples == 0 ? weights.size() : static_cast<std::size_t>(options.samples);
  if (wanted > drawable)
    throw InvalidArgument(
        "WeightedSampler: rank {}: got {} samples per epoch without replacement, but only {} have a weight above 0: "
        "draw "
        "at most {} (`samples`), or with replacement",
        place.rank, wanted, drawable, drawable);
}

std::string text_of(std::span<const double> weights, const WeightedSamplerOptions& options) {
  return fmt::format("samples {}, replacement {}, weights {}",
                     options.samples == 0 ? static_cast<std::int64_t>(weights.size()) : options.samples,
                     options.replacement, fingerprint(weights));
}

}  // namespace

WeightedSampler::WeightedSampler(std::int64_t size, std::span<const double> weights, const Place& place,
                                 const WeightedSamplerOptions& options)
    : Sampler("WeightedSampler", size, place, options.seed, options.remainder, text_of(weights, options)),
      samples_(options.samples == 0 ? size : options.samples),
      replacement_(options.replacement) {
  check_weights(size, weights, place);
  check_samples(weights, options, place);
  weights_ = std::make_shared<const std::vector<double>>(weights.begin(), weights.end());
  check_not_all_dropped();
}

SampleOrder WeightedSampler::whole_order(std::uint64_t seed, std::int64_t epoch) const {
  Philox random(seed, random_stream(RandomUse::kOrder, static_cast<std::uint64_t>(epoch)));
  SumTree tree(*weights_);
  SampleOrder order;
  order.indices.reserve(static_cast<std::size_t>(samples_));
  for (std::int64_t drawn = 0; drawn < samples_; ++drawn) {
    const std::size_t index = tree.find(uniform(random));
    if (!replacement_) tree.remove(index);
    order.indices.push_back(static_cast<std::int64_t>(index));
  }
  return order;
}

std::vector<double> balancing_weights(std::span<const std::int64_t> labels) {
  std::unordered_map<std::int64_t, std::int64_t> counts;
  for (const std::int64_t label : labels) ++counts[label];
  std::vector<double> weights;
  weights.reserve(labels.size());
  for (const std::int64_t label : labels) weights.push_back(1.0 / static_cast<double>(counts[label]));
  return weights;
}

}  // namespace lockstep::data
