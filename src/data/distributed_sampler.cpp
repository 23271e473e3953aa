#include <numeric>

#include "lockstep/core/error.h"
#include "lockstep/data/sampler.h"
#include "src/data/shuffle.h"

namespace lockstep::data {

DistributedSampler::DistributedSampler(std::int64_t size, const Place& place, const DistributedSamplerOptions& options)
    : Sampler("DistributedSampler", size, place, options.seed, options.remainder, fmt::format("shuffle {}", options.shuffle)),
      shuffle_(options.shuffle) {
  check_not_all_dropped();
}

SampleOrder DistributedSampler::whole_order(std::uint64_t seed, std::int64_t epoch) const {
  SampleOrder order{std::vector<std::int64_t>(static_cast<std::size_t>(set_size()))};
  std::iota(order.indices.begin(), order.indices.end(), 0);
  if (shuffle_) {
    Philox random(seed, random_stream(RandomUse::kOrder, static_cast<std::uint64_t>(epoch)));
    shuffle(order.indices, random);
  }
  return order;
}

}  // namespace lockstep::data
