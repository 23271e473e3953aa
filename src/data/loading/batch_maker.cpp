#include "src/data/loading/batch_maker.h"

#include <utility>

#include "lockstep/core/error.h"
#include "src/data/loading/sample_error.h"
#include "src/data/loading/stack.h"

namespace lockstep::data {

BatchMaker::BatchMaker(const Dataset& dataset, Collate collate) : dataset_(dataset), collate_(std::move(collate)) {
  if (!collate_) spec_ = dataset.element_spec();
}

namespace {

void check_wanted(const std::atomic<bool>& stop) {
  if (stop.load(std::memory_order_relaxed)) throw MakingStopped();
}

}  // namespace

void BatchMaker::fill(std::span<const std::int64_t> indices, std::int64_t epoch, std::span<const Tensor> stacked,
                      const std::atomic<bool>& stop) const {
  const auto rows = static_cast<std::int64_t>(indices.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t index = indices[static_cast<std::size_t>(row)];
    check_wanted(stop);
    try {
      dataset_.read(index, epoch, Row(stacked, row, rows));
    } catch (...) {
      rethrow_for_sample(index, epoch);
    }
  }
}

void BatchMaker::fill_images(std::span<const std::int64_t> indices, std::int64_t epoch, const PackedImages& packed,
                             const Tensor& targets, const std::atomic<bool>& stop) const {
  const auto labels = targets.span<std::int64_t>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    check_wanted(stop);
    try {
      dataset_.images()->read_image(indices[i], epoch, packed.planes_of(static_cast<std::int64_t>(i)), packed.each()[i],
                                    labels[i]);
    } catch (...) {
      rethrow_for_sample(indices[i], epoch);
    }
  }
}

Batch BatchMaker::make(std::span<const std::int64_t> indices, std::int64_t epoch, const std::atomic<bool>& stop) const {
  if (!in_place()) return collate(indices, epoch, stop);
  std::vector<Tensor> stacked;
  for (const TensorSpec& spec : spec_)
    stacked.push_back(
        Tensor::empty(stacked_shape(static_cast<std::int64_t>(indices.size()), spec.shape), spec.dtype, cpu_device()));
  fill(indices, epoch, stacked, stop);
  return Batch(std::move(stacked));
}

Batch BatchMaker::collate(std::span<const std::int64_t> indices, std::int64_t epoch,
                          const std::atomic<bool>& stop) const {
  std::vector<Sample> samples(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    check_wanted(stop);
    try {
      samples[i] = dataset_.get(indices[i], epoch);
    } catch (...) {
      rethrow_for_sample(indices[i], epoch);
    }
  }
  try {
    Batch batch = collate_ ? collate_(samples) : stack(samples);
    check_on_cpu(collate_ ? "DataLoader: collate" : "stack", batch, "DataLoaderOptions::device");
    return batch;
  } catch (...) {
    rethrow_for_batch(indices, epoch);
  }
}

}  // namespace lockstep::data
