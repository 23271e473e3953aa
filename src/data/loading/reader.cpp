#include "lockstep/data/reader.h"

#include "lockstep/core/error.h"

namespace lockstep::data {

struct Reader::Impl {
  Pipeline pipeline;
  ReaderOptions options;
  std::int64_t per_epoch = 0;
  std::int64_t next = 0;
  std::optional<PipelineEpoch> epoch = {};  // with the batch before `next`, if next() has returned it
  std::optional<DataLoader::Iterator> at = {};

  bool is_over() const { return pipeline.repeats() > 0 && next >= pipeline.repeats() * per_epoch; }

  void open() {
    at.reset();
    epoch.reset();
    epoch.emplace(pipeline.epoch(next / per_epoch, {.place = options.place,
                                                    .device = options.device,
                                                    .remainder = options.remainder,
                                                    .first_batch = next % per_epoch}));
    at.emplace(epoch->begin());
  }
};

Reader::Reader(Pipeline pipeline, const ReaderOptions& options)
    : impl_(new Impl{.pipeline = std::move(pipeline), .options = options}) {
  impl_->per_epoch =
      impl_->pipeline.epoch(0, {.place = options.place, .device = options.device, .remainder = options.remainder})
          .batches();
}

Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;

std::optional<Batch> Reader::next() {
  Impl& reader = *impl_;
  if (reader.is_over()) return std::nullopt;
  try {
    if (!reader.at || reader.next % reader.per_epoch == 0)
      reader.open();
    else
      ++*reader.at;
    ++reader.next;
    return **reader.at;  // the tensors stay valid: the loader fills others
  } catch (...) {
    reader.at.reset();
    throw;
  }
}

void Reader::seek(std::int64_t batch) {
  const std::int64_t repeats = impl_->pipeline.repeats();
  if (batch < 0 || (repeats > 0 && batch > repeats * impl_->per_epoch))
    throw InvalidArgument(
        "Reader::seek({}): expected a number from 0{}", batch,
        repeats > 0 ? fmt::format(" to {}, the batches of {} epochs", repeats * impl_->per_epoch, repeats) : "");
  impl_->next = batch;
  impl_->at.reset();
  impl_->epoch.reset();
}

std::int64_t Reader::position() const { return impl_->next; }
std::int64_t Reader::batches_per_epoch() const { return impl_->per_epoch; }

}  // namespace lockstep::data
