#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"
#include "src/data/samplers/shuffle.h"

namespace lockstep::data {

namespace {

std::string options_text(const DistributedSamplerOptions& options) {
  const std::string buffer =
      options.shuffle && options.shuffle_buffer > 0 ? fmt::format(", buffer {}", options.shuffle_buffer) : "";
  return fmt::format("shuffle {}{}", options.shuffle, buffer);
}

// The buffer starts at `next`: the drawn sample swaps with the one at `next`, then the window moves on.
void shuffle_by_buffer(std::vector<std::int64_t>& order, std::int64_t buffer, Philox& random) {
  for (std::size_t next = 0; next + 1 < order.size(); ++next) {
    const std::size_t waiting = std::min(static_cast<std::size_t>(buffer), order.size() - next);
    std::swap(order[next], order[next + random.below(static_cast<std::uint32_t>(waiting))]);
  }
}

}  // namespace

DistributedSampler::DistributedSampler(std::int64_t size, const Place& place, const DistributedSamplerOptions& options)
    : Sampler("DistributedSampler", size, place, options.seed, options.remainder, options_text(options)),
      shuffle_(options.shuffle),
      buffer_(options.shuffle_buffer) {
  if (buffer_ < 0)
    throw InvalidArgument("DistributedSampler: shuffle_buffer {} must not be negative; 0 shuffles the entire set",
                          buffer_);
  check_not_all_dropped();
}

DistributedSampler::DistributedSampler(const Dataset& set, const Place& place, const DistributedSamplerOptions& options)
    : DistributedSampler(set.size(), place, options) {
  set_fingerprint(fingerprint_of(set));
}

SampleOrder DistributedSampler::whole_order(std::uint64_t seed, std::int64_t epoch) const {
  SampleOrder order{std::vector<std::int64_t>(static_cast<std::size_t>(set_size()))};
  std::iota(order.indices.begin(), order.indices.end(), 0);
  if (shuffle_) {
    Philox random(seed, random_stream(RandomUse::kOrder, static_cast<std::uint64_t>(epoch)));
    if (buffer_ > 0 && buffer_ < set_size())
      shuffle_by_buffer(order.indices, buffer_, random);
    else
      shuffle(order.indices, random);
  }
  return order;
}

}  // namespace lockstep::data
