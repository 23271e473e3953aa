#include "lockstep/train/summary_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/data/formats/utf8.h"
#include "src/train/events/event_file.h"
#include "src/train/events/histogram.h"
#include "src/train/events/module_graph.h"
#include "src/train/events/summary_messages.h"
#include "src/train/files/png.h"

namespace lockstep::train {

namespace {

namespace fs = std::filesystem;

double system_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();)
    if (!data::next_character(text, at)) return false;
  return true;
}

// Readers of protocol buffers refuse the entire record if text is not UTF-8.
void check_text(const char* call, const char* what, const std::string& text) {
  if (!is_utf8(text)) throw InvalidArgument("{}: {} is not UTF-8", call, what);
}

void check_tag(const char* call, const std::string& tag) {
  if (tag.empty()) throw InvalidArgument("{}: the tag is empty", call);
  check_text(call, "the tag", tag);
}

// Makes a single folder name from any name.
std::string run_folder(std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// Checks that the tensor is defined and returns it on the CPU.
Tensor defined_on_cpu(const char* call, const std::string& tag, const Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument("{}: '{}': the tensor is undefined", call, tag);
  return tensor.to(cpu_device());
}

bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// Converts the values to 8 bits each, in memory order.
std::vector<std::uint8_t> bytes_of(const char* call, const std::string& tag, const Tensor& image) {
  if (image.dtype() != DType::kUInt8 && !is_floating(image.dtype()))
    throw InvalidArgument("{}: '{}': the image is {}, expected uint8 or a floating type", call, tag,
                          name_of(image.dtype()));
  std::vector<std::uint8_t> bytes;
  bytes.reserve(static_cast<std::size_t>(image.count()));
  const double scale = image.dtype() == DType::kUInt8 ? 1 : 255;
  events::for_each_number(image, [&](double value) {
    const double positive = value > 0 ? value * scale : 0;  // makes NaN 0
    bytes.push_back(static_cast<std::uint8_t>(std::min(positive, 255.) + 0.5));
  });
  return bytes;
}

// Accepts (H, W) or (H, W, C).
events::Image image_of(const char* call, const std::string& tag, const Tensor& given) {
  const Tensor image = defined_on_cpu(call, tag, given);
  const Shape& shape = image.shape();
  const std::int64_t channels = shape.dims() == 3 ? shape[2] : 1;
  if ((shape.dims() != 2 && shape.dims() != 3) || (channels != 1 && channels != 3 && channels != 4) ||
      shape.count() == 0)
    throw InvalidArgument("{}: '{}': the image has the shape {}, expected (H, W) or (H, W, C) with 1, 3 or 4 channels",
                          call, tag, shape.text());
  const std::vector<std::uint8_t> bytes = bytes_of(call, tag, image);
  return {shape[0], shape[1], channels, events::png_of({shape[0], shape[1], channels, bytes})};
}

// Arranges (N, H, W, C) as one (rows * H, columns * W, C) image; the rest of the last row is 0.
Tensor grid_of(const std::string& tag, const Tensor& given, std::int64_t most_columns) {
  const Tensor images = defined_on_cpu("add_images", tag, given);
  const Shape& shape = images.shape();
  if (shape.dims() != 4 || shape.count() == 0)
    throw InvalidArgument("add_images: '{}': the images have the shape {}, expected (N, H, W, C), N at least 1", tag,
                          shape.text());
  if (most_columns < 1)
    throw InvalidArgument("add_images: '{}': columns is {}, expected at least 1", tag, most_columns);
  const std::int64_t columns = std::min(most_columns, shape[0]), rows = (shape[0] + columns - 1) / columns;
  const Tensor grid = Tensor::zeros({rows * shape[1], columns * shape[2], shape[3]}, images.dtype(), cpu_device());
  const auto line = static_cast<std::size_t>(shape[2] * shape[3]) * size_of(images.dtype());
  for (std::int64_t image = 0; image < shape[0]; ++image)
    for (std::int64_t y = 0; y < shape[1]; ++y) {
      const std::int64_t to = ((image / columns) * shape[1] + y) * columns + image % columns;
      const std::byte* from = images.buffer().data() + static_cast<std::size_t>(image * shape[1] + y) * line;
      std::copy_n(from, line, grid.buffer().data() + static_cast<std::size_t>(to) * line);
    }
  return grid;
}

// Calls it for all elements even if one throws, and then throws the first exception.
template <typename Range, typename Call> void call_for_each(const Range& range, const Call& call) {
  std::exception_ptr first;
  for (const auto& element : range) try {
      call(element);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  if (first) std::rethrow_exception(first);
}

void check_hparams(const std::map<std::string, Hparam>& hparams, const std::map<std::string, double>& metrics) {
  for (const auto& [name, hparam] : hparams) {
    check_tag("add_hparams", name);
    if (const double* number = std::get_if<double>(&hparam.value()); number != nullptr && !std::isfinite(*number))
      throw InvalidArgument("add_hparams: '{}' is {}, expected a finite number", name, *number);
    if (const auto* text = std::get_if<std::string>(&hparam.value())) check_text("add_hparams", "a value", *text);
  }
  for (const auto& [name, value] : metrics) check_tag("add_hparams", name);
}

}  // namespace

struct SummaryWriter::Impl {
  Impl(std::string folder, const SummaryWriterOptions& given)
      : log_dir(std::move(folder)),
        options(given),
        start(now()),
        own(log_dir, start,
            {given.file_name, given.max_queue, std::chrono::duration<double>(given.flush_every).count(),
             given.purge_step}) {}

  double now() const { return options.clock ? options.clock() : system_seconds(); }
  events::Moment at(std::int64_t step) const { return {now(), step}; }

  void add(const events::Moment& moment, const events::Message& event) {
    const std::lock_guard lock(mutex);
    own.add(moment.time, event);
  }

  // Returns the file of another run, for add_scalars(). A given file name applies only to this writer's own run.
  events::EventFile& other_run(const std::string& name, double time) {
    const auto found = other_runs.find(name);
    if (found != other_runs.end()) return *found->second;
    auto run = std::make_unique<events::EventFile>((fs::path(log_dir) / name).string(), time, own.options());
    return *other_runs.emplace(name, std::move(run)).first->second;
  }

  std::vector<events::EventFile*> runs() {
    std::vector<events::EventFile*> all = {&own};
    for (const auto& [name, run] : other_runs) all.push_back(run.get());
    return all;
  }

  const std::string log_dir;
  const SummaryWriterOptions options;
  const double start;
  std::mutex mutex;  // guards everything below
  events::EventFile own;
  std::map<std::string, std::unique_ptr<events::EventFile>> other_runs;
  std::set<std::string> warned;        // histogram tags
  std::set<std::string> with_hparams;  // names of runs, "" for this writer's
};

SummaryWriter::SummaryWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SummaryWriter::~SummaryWriter() = default;
SummaryWriter::SummaryWriter(SummaryWriter&&) noexcept = default;
SummaryWriter& SummaryWriter::operator=(SummaryWriter&&) noexcept = default;

SummaryWriter SummaryWriter::none() { return SummaryWriter(std::unique_ptr<Impl>()); }

SummaryWriter::SummaryWriter(const std::string& log_dir, const SummaryWriterOptions& options) {
  if (log_dir.empty()) throw InvalidArgument("SummaryWriter: log_dir is empty");
  if (options.max_queue < 1)
    throw InvalidArgument("SummaryWriter: max_queue is {}, expected at least 1", options.max_queue);
  const auto group = options.group ? options.group : default_process_group();
  const int rank = group ? group->rank() : 0;
  if (rank != 0 && !options.every_rank) return;
  const std::string folder = options.every_rank ? (fs::path(log_dir) / fmt::format("rank{}", rank)).string() : log_dir;
  impl_ = std::make_unique<Impl>(folder, options);
}

std::string SummaryWriter::file() const { return impl_ ? impl_->own.path() : ""; }

void SummaryWriter::add_scalar(const std::string& tag, double value, std::int64_t step) {
  if (!impl_) return;
  check_tag("add_scalar", tag);
  const events::Moment moment = impl_->at(step);
  impl_->add(moment, events::scalar_event(moment, tag, value));
}

void SummaryWriter::add_scalar(const std::string& tag, const Tensor& value, std::int64_t step) {
  if (!impl_) return;
  if (!value.defined() || value.count() != 1 || !is_floating(value.dtype()))
    throw InvalidArgument(
        "add_scalar: '{}': the tensor is {}, expected one element of a floating type", tag,
        value.defined() ? fmt::format("{} {}", name_of(value.dtype()), value.shape().text()) : "undefined");
  add_scalar(tag, value.item(), step);
}

void SummaryWriter::add_scalars(const std::string& main_tag, const std::map<std::string, double>& values,
                                std::int64_t step) {
  if (!impl_) return;
  check_tag("add_scalars", main_tag);
  const events::Moment moment = impl_->at(step);
  const std::lock_guard lock(impl_->mutex);
  call_for_each(values, [&](const auto& entry) {
    events::EventFile& run = impl_->other_run(run_folder(main_tag + "_" + entry.first), moment.time);
    run.add(moment.time, events::scalar_event(moment, main_tag, entry.second));
  });
}

std::int64_t SummaryWriter::add_histogram(const std::string& tag, const Tensor& values, std::int64_t step,
                                          const HistogramOptions& options) {
  if (!impl_) return 0;
  check_tag("add_histogram", tag);
  constexpr int kMostBuckets = 100'000;
  if (options.buckets < 0 || options.buckets > kMostBuckets)
    throw InvalidArgument("add_histogram: '{}': buckets is {}, expected 0 to {}", tag, options.buckets, kMostBuckets);
  const events::Histogram histogram =
      events::histogram_of(defined_on_cpu("add_histogram", tag, values), options.buckets);
  const events::Moment moment = impl_->at(step);
  const std::lock_guard lock(impl_->mutex);
  if (histogram.not_finite > 0 && impl_->warned.insert(tag).second)
    log::warn(
        "add_histogram: '{}', step {}: {} of {} values are not finite and are skipped; this is logged once per tag",
        tag, step, histogram.not_finite, histogram.finite + histogram.not_finite);
  impl_->own.add(moment.time, events::histogram_event(moment, tag, histogram));
  return histogram.not_finite;
}

void SummaryWriter::add_image(const std::string& tag, const Tensor& image, std::int64_t step) {
  if (!impl_) return;
  check_tag("add_image", tag);
  const events::Moment moment = impl_->at(step);
  impl_->add(moment, events::image_event(moment, tag, image_of("add_image", tag, image)));
}

void SummaryWriter::add_images(const std::string& tag, const Tensor& images, std::int64_t step,
                               const ImagesOptions& options) {
  if (!impl_) return;
  check_tag("add_images", tag);
  const events::Moment moment = impl_->at(step);
  impl_->add(moment,
             events::image_event(moment, tag, image_of("add_images", tag, grid_of(tag, images, options.columns))));
}

void SummaryWriter::add_text(const std::string& tag, const std::string& text, std::int64_t step) {
  if (!impl_) return;
  check_tag("add_text", tag);
  check_text("add_text", "the text", text);
  const events::Moment moment = impl_->at(step);
  impl_->add(moment, events::text_event(moment, tag, text));
}

void SummaryWriter::add_hparams(const std::map<std::string, Hparam>& hparams,
                                const std::map<std::string, double>& metrics, const HparamsOptions& options) {
  if (!impl_) return;
  check_hparams(hparams, metrics);
  const events::Moment moment = impl_->at(options.step);
  const std::lock_guard lock(impl_->mutex);
  const bool is_own = options.run_name.empty();
  events::EventFile& run = is_own ? impl_->own : impl_->other_run(run_folder(options.run_name), moment.time);
  if (!impl_->with_hparams.insert(options.run_name).second)
    throw InvalidArgument("add_hparams: the run of {} already has hyper-parameters: choose another .run_name",
                          run.path());
  const events::Moment of_run = {moment.time, 0};
  std::vector<events::Message> all = {events::experiment_event(of_run, hparams, metrics),
                                      events::session_start_event(of_run, hparams, is_own ? impl_->start : moment.time),
                                      events::session_end_event(of_run)};
  for (const auto& [tag, value] : metrics) all.push_back(events::scalar_event(moment, tag, value));
  run.add(moment.time, all);
}

void SummaryWriter::add_graph(const nn::Module& module) {
  if (!impl_) return;
  const events::Moment moment = impl_->at(0);
  impl_->add(moment, events::graph_event(moment, events::graph_of(module)));
}

void SummaryWriter::add_graph(nn::Module& module, std::span<const nn::InputSpec> inputs) {
  if (!impl_) return;
  const events::Moment moment = impl_->at(0);
  impl_->add(moment, events::graph_event(moment, events::graph_of(module, inputs)));
}

void SummaryWriter::add_graph(nn::Module& module, std::initializer_list<nn::InputSpec> inputs) {
  add_graph(module, std::span<const nn::InputSpec>(inputs.begin(), inputs.size()));
}

void SummaryWriter::add_graph(nn::Module& module, const Shape& input_shape) {
  add_graph(module, {nn::InputSpec{input_shape}});
}

void SummaryWriter::flush() {
  if (!impl_) return;
  const std::lock_guard lock(impl_->mutex);
  call_for_each(impl_->runs(), [](events::EventFile* run) { run->flush(); });
}

void SummaryWriter::close() {
  if (!impl_) return;
  const std::lock_guard lock(impl_->mutex);
  call_for_each(impl_->runs(), [](events::EventFile* run) { run->close(); });
}

}  // namespace lockstep::train
