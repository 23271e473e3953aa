// Writes scalars, histograms, images, text, hyper-parameters and graphs for TensorBoard in its event file format,
// without TensorFlow. The methods have the same names as in torch.utils.tensorboard. See docs/trainer.md.
//
//   ls::train::SummaryWriter writer("runs/first");         // on all ranks: rank 0 writes, the others do nothing
//   writer.add_scalar("loss/train", loss, step);    // tensorboard --logdir runs
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <variant>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct SummaryWriterOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;  // null: the thread's default group; without one: a job of one rank
  bool every_rank = false;  // rank r writes to log_dir/rank<r>, a separate run in TensorBoard; else only rank 0 writes
  int max_queue = 10;       // records that are buffered before they are written; 1: no buffering
  std::chrono::seconds flush_every{120};  // records older than this are written when another is added
  // Seconds since 1970, for records, file names and flush_every; empty: system time.
  std::function<double()> clock = {};
  // Empty: events.out.tfevents.<seconds>.<host>.<pid>.<n>, where n counts the process's files.
  std::string file_name = {};
  // The first step that this writer adds when it continues in an existing folder. TensorBoard then drops this step and
  // later ones from older files, such as those of a run that went beyond its last checkpoint. The new file's name sorts
  // after theirs, whatever the clock says.
  std::optional<std::int64_t> purge_step = std::nullopt;
};

struct HistogramOptions {
  // 0: TensorFlow's bucket limits, 0 and +-1e-12 * 1.1^k (tensorflow/core/lib/histogram/histogram.cc): buckets are 10 %
  // wide at any magnitude, so outliers do not cost resolution. Else this many buckets of equal width from the least to
  // the largest value, as in tensorboard.summary.v2.
  int buckets = 0;
};

struct ImagesOptions {
  std::int64_t columns = 8;  // of the grid; fewer if there are fewer images
};

// The value of a hyper-parameter: a bool, a number or a string.
class Hparam {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T> Hparam(T value) {
    if constexpr (std::same_as<T, bool>)
      value_ = value;
    else
      value_ = static_cast<double>(value);
  }
  Hparam(std::string value) : value_(std::move(value)) {}
  Hparam(const char* value) : value_(std::string(value)) {}
  const std::variant<bool, double, std::string>& value() const { return value_; }

 private:
  std::variant<bool, double, std::string> value_;
};

struct HparamsOptions {
  // Empty: the hyper-parameters of this writer's run; only one call is allowed. Else creates a run log_dir/run_name,
  // for a program that tries several settings.
  std::string run_name = {};
  std::int64_t step = 0;  // of the metrics
};

// Writes one run. Any thread may call it. Records are buffered; all are written by the call that reaches `max_queue`
// records, or that comes `flush_every` after the last write. A call that cannot write throws FileError with file, cause
// and remedy; all records stay buffered, and the next call writes them. Other mistakes throw InvalidArgument with the
// tag: an empty tag, text that is not UTF-8, a tensor of another shape or type, or a closed writer. Tags with a '/' are
// grouped by their first part. Tensors may be on any device; reading one blocks until it is computed. Ranks that do not
// write ignore all arguments.
class SummaryWriter {
 public:
  // Creates the folder and a new file in it; throws FileError on failure. A rank that does not write creates nothing.
  explicit SummaryWriter(const std::string& log_dir, const SummaryWriterOptions& options = {});
  static SummaryWriter none();  // writes nothing, for programs in which logging is optional
  ~SummaryWriter();             // calls close(); logs an error
  SummaryWriter(SummaryWriter&&) noexcept;
  SummaryWriter& operator=(SummaryWriter&&) noexcept;

  bool writes() const { return impl_ != nullptr; }  // to skip work that is only for the log
  std::string file() const;                         // the event file; "" for a writer that writes nothing

  // The value is stored as float32; TensorBoard marks NaN and infinities. The tensor must have one element of a
  // floating type.
  void add_scalar(const std::string& tag, double value, std::int64_t step);
  void add_scalar(const std::string& tag, const Tensor& value, std::int64_t step);
  // Adds values to one chart: each becomes a run log_dir/<main_tag>_<key> with the tag main_tag. A '/' in these folder
  // names becomes '_'.
  void add_scalars(const std::string& main_tag, const std::map<std::string, double>& values, std::int64_t step);

  // Accepts a tensor of any shape and type. Skips values that are not finite, returns their number, and warns once per
  // tag.
  std::int64_t add_histogram(const std::string& tag, const Tensor& values, std::int64_t step,
                             const HistogramOptions& options = {});

  // (H, W) or (H, W, C) with C = 1 (grey), 3 (RGB) or 4 (RGBA): uint8, or a floating type in 0..1; values outside are
  // clamped and NaN becomes 0.
  void add_image(const std::string& tag, const Tensor& image, std::int64_t step);
  // (N, H, W, C) with N of at least 1: one image with a grid, filled row by row.
  void add_images(const std::string& tag, const Tensor& images, std::int64_t step, const ImagesOptions& options = {});

  void add_text(const std::string& tag, const std::string& text, std::int64_t step);  // Markdown

  // A row of the HPARAMS tab: hyper-parameters (numbers must be finite) and the final metrics, each of which is also a
  // scalar with that tag.
  void add_hparams(const std::map<std::string, Hparam>& hparams, const std::map<std::string, double>& metrics,
                   const HparamsOptions& options = {});

  // The GRAPHS tab: modules with their kinds, options and parameter shapes; children are inside their parents. With
  // inputs, runs one forward pass like summary() and shows the modules in the order of their calls, connected by their
  // tensors, with the output shapes. If an operator is between two modules, the second is connected to all earlier ones
  // with the same parent whose outputs no other module took. Without inputs, shows the order of registration, each
  // module connected to the one before it.
  //   writer.add_graph(net, {1, 24, 24, 3});
  void add_graph(const nn::Module& module);
  void add_graph(nn::Module& module, std::span<const nn::InputSpec> inputs);
  void add_graph(nn::Module& module, std::initializer_list<nn::InputSpec> inputs);
  void add_graph(nn::Module& module, const Shape& input_shape);

  void flush();  // writes all buffered records, so that TensorBoard sees them
  // Flushes and waits for the disk. After an error the writer stays open and close() may be called again.
  void close();

 private:
  struct Impl;
  explicit SummaryWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
