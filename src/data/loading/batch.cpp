#include "lockstep/data/batch.h"

#include "lockstep/core/error.h"

namespace lockstep::data {

std::size_t Batch::checked(std::size_t number) const {
  if (number >= tensors_.size())
    throw InvalidArgument("Batch: tensor {} does not exist; the batch has {} tensors", number, tensors_.size());
  return number;
}

void Batch::check_size(std::size_t wanted) const {
  if (tensors_.size() != wanted)
    throw InvalidArgument(
        "Batch: cannot be destructured into {} tensors; it has {}: use batch.tensors<{}>(), or batch[0], batch[1], ...",
        wanted, tensors_.size(), tensors_.size());
}

const Tensor& Row::tensor(std::size_t i) const {
  if (i >= stacked_.size())
    throw InvalidArgument("Row: tensor {} does not exist; the sample has {} tensors", i, stacked_.size());
  return stacked_[i];
}

void Row::check_is_one(std::size_t i, std::size_t count) {
  if (count != 1)
    throw InvalidArgument("Row::value: tensor {} has {} elements in a sample, not one: use span()", i, count);
}

std::span<std::byte> Row::bytes(std::size_t i) const {
  const Tensor& all = tensor(i);
  const std::size_t size = all.bytes() / static_cast<std::size_t>(rows_);
  return {all.buffer().data() + static_cast<std::size_t>(number_) * size, size};
}

}  // namespace lockstep::data
