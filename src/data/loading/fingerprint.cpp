// Only some samples are hashed, because hashing all of them would read the entire set.
#include "src/data/loading/fingerprint.h"

#include <algorithm>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {

namespace {

constexpr std::int64_t kLookedAt = 16;

void add_bytes(crypto::Sha256& hash, std::span<const std::byte> bytes) {
  const auto size = static_cast<std::uint64_t>(bytes.size());
  hash.update(std::as_bytes(std::span(&size, 1)));
  hash.update(bytes);
}

// Hashes the stored image: its augmentation in an epoch may change with the run's options.
void add_image(crypto::Sha256& hash, const ImageSource& images, std::int64_t index) {
  std::vector<std::uint8_t> planes(static_cast<std::size_t>(3 * images.side() * images.side()));
  Augmentation how;
  std::int64_t target = 0;
  images.read_image(index, 0, planes, how, target);
  add_bytes(hash, std::as_bytes(std::span(planes)));
  add_bytes(hash, std::as_bytes(std::span(&target, 1)));
}

void add_sample(crypto::Sha256& hash, const Sample& sample) {
  for (const Tensor& tensor : sample) {
    add_bytes(hash, std::as_bytes(std::span(tensor.shape().extents())));
    add_bytes(hash, {static_cast<const std::byte*>(tensor.buffer().data()), tensor.bytes()});
  }
}

}  // namespace

std::string fingerprint_of(const Dataset& set) {
  crypto::Sha256 hash;
  const std::int64_t size = set.size(), looked_at = std::min(size, kLookedAt);
  add_bytes(hash, std::as_bytes(std::span(&size, 1)));
  for (std::int64_t i = 0; i < looked_at; ++i) {
    const std::int64_t index = looked_at == 1 ? 0 : i * (size - 1) / (looked_at - 1);
    if (const ImageSource* const images = set.images())
      add_image(hash, *images, index);
    else
      add_sample(hash, set.get(index, 0));
  }
  const crypto::Digest digest = hash.finish();
  return crypto::hex(std::span(digest).first(8));
}

}  // namespace lockstep::data
