#include "lockstep/data/dataset.h"

#include <cstring>

#include "lockstep/core/error.h"
#include "src/data/loading/stack.h"

namespace lockstep::data {

void Dataset::read(std::int64_t index, std::int64_t epoch, const Row& row) const {
  const Sample sample = get(index, epoch);
  const std::vector<TensorSpec> expected = element_spec();
  if (sample.size() != expected.size())
    throw InvalidArgument("Dataset: get() returned {} tensors, but element_spec() promises {}", sample.size(),
                          expected.size());
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const TensorSpec actual = spec_of(sample[i]);
    if (actual != expected[i])
      throw InvalidArgument("Dataset: get() returned {} as tensor {}, but element_spec() promises {}", text_of(actual),
                            i, text_of(expected[i]));
    copy_to_row(sample[i], i, row);
  }
}

Sample FixedShapeDataset::get(std::int64_t index, std::int64_t epoch) const {
  Sample sample;
  for (const TensorSpec& spec : element_spec()) sample.push_back(Tensor::empty(spec.shape, spec.dtype, cpu_device()));
  read(index, epoch, Row(sample, 0, 1));
  return sample;
}

}  // namespace lockstep::data
