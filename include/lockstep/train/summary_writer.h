// Scalars, histograms, images, text, hyper-parameters and graphs for TensorBoard, in its own event files, without
// TensorFlow. The calls are called as in torch.utils.tensorboard. See docs/trainer.md.
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
  std::shared_ptr<ProcessGroup> group = nullptr;  // null: the thread's default group; none: a job of one
  bool every_rank = false;  // rank r writes to log_dir/rank<r>, a run of its own in TensorBoard; else rank 0 alone
  int max_queue = 10;       // so many records wait in memory before they are written; 1: none waits
  std::chrono::seconds flush_every{120};  // nor does one wait longer, when another is added after that time
  std::function<double()> clock =
      {};                      // seconds since 1970, of records, file names and flush_every; empty: the system's
  std::string file_name = {};  // empty: events.out.tfevents.<seconds>.<host>.<pid>.<n>, n counts the process's files
  // The first step that this writer adds, where it goes on in a folder: what older files there have of this step and
  // later ones, by a run that went further than its last checkpoint, TensorBoard drops. The new file's name stands
  // after theirs, whatever the clock says.
  std::optional<std::int64_t> purge_step = std::nullopt;
};

struct HistogramOptions {
  // 0: TensorFlow's bucket limits, 0 and +-1e-12 * 1.1^k (tensorflow/core/lib/histogram/histogram.cc): 10 % wide,
  // wherever the values lie, so an outlier costs nothing. Else so many of equal width from the least value to the
  // largest, as tensorboard.summary.v2 has them.
  int buckets = 0;
};

struct ImagesOptions {
  std::int64_t columns = 8;  // of the grid; fewer when there are fewer images
};

// The value of a hyper-parameter: true or false, a number, or text.
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
  // Empty: they are those of this writer's own run, once. Else of a run log_dir/run_name, which the call makes: for a
  // program that tries several settings.
  std::string run_name = {};
  std::int64_t step = 0;  // of the metrics
};

// A writer of one run. Any thread may call it. Records wait in memory; the call that makes `max_queue` of them, or
// comes `flush_every` after the last write, writes them all. A call that cannot write throws FileError with file, cause
// and remedy; its record and the others stay in memory, and the next call writes them where they belong. Other mistakes
// are InvalidArgument with the tag: an empty one, text that is not UTF-8, a tensor of another shape or type, a writer
// that is closed. Tags with a '/' are grouped by their first part. Tensors may be on any device: reading one blocks
// until it is computed. Ranks that do not write look at no argument.
class SummaryWriter {
 public:
  // Makes the folder and in it a new file: FileError if that cannot be. A rank that does not write makes nothing.
  explicit SummaryWriter(const std::string& log_dir, const SummaryWriterOptions& options = {});
  static SummaryWriter none();  // writes nothing: for programs in which a log is an option
  ~SummaryWriter();             // close(); an error is logged
  SummaryWriter(SummaryWriter&&) noexcept;
  SummaryWriter& operator=(SummaryWriter&&) noexcept;

  bool writes() const { return impl_ != nullptr; }  // to skip work that is for the log alone
  std::string file() const;                         // the event file; "" for a writer that writes nothing

  // Kept as float32; NaN and infinities too, which TensorBoard marks. The tensor: one element of a floating type.
  void add_scalar(const std::string& tag, double value, std::int64_t step);
  void add_scalar(const std::string& tag, const Tensor& value, std::int64_t step);
  // In one chart: each value becomes a run log_dir/<main_tag>_<key>, with the tag main_tag. A '/' in these names of
  // folders becomes '_'.
  void add_scalars(const std::string& main_tag, const std::map<std::string, double>& values, std::int64_t step);

  // Of a tensor of any shape and type. Values that are not finite are left out; returns how many, and warns at the
  // first call of the tag.
  std::int64_t add_histogram(const std::string& tag, const Tensor& values, std::int64_t step,
                             const HistogramOptions& options = {});

  // (H, W) or (H, W, C), C of 1 (grey), 3 (RGB) or 4 (RGBA): uint8, or of a floating type from 0 to 1: below is 0,
  // above 1, NaN 0.
  void add_image(const std::string& tag, const Tensor& image, std::int64_t step);
  // (N, H, W, C), N at least 1: one image, a grid, row by row.
  void add_images(const std::string& tag, const Tensor& images, std::int64_t step, const ImagesOptions& options = {});

  void add_text(const std::string& tag, const std::string& text, std::int64_t step);  // Markdown

  // A row of the tab HPARAMS: hyper-parameters (finite numbers) and the metrics at the end, each of which is a scalar
  // of that tag, too.
  void add_hparams(const std::map<std::string, Hparam>& hparams, const std::map<std::string, double>& metrics,
                   const HparamsOptions& options = {});

  // The tab GRAPHS: modules with their kinds, options and parameters' shapes, children inside their parents. With
  // inputs: in the order of their calls, joined as the tensors went, with the shapes of outputs; runs one forward as
  // summary() does. Where an operator stands between two modules, the second is joined to all before it, of the same
  // parent, whose outputs no other module took. Without: in the order of their registration, each joined to the one
  // before it.
  //   writer.add_graph(net, {1, 24, 24, 3});
  void add_graph(const nn::Module& module);
  void add_graph(nn::Module& module, std::span<const nn::InputSpec> inputs);
  void add_graph(nn::Module& module, std::initializer_list<nn::InputSpec> inputs);
  void add_graph(nn::Module& module, const Shape& input_shape);

  void flush();  // all that waits, so that TensorBoard sees it
  // Flushes, and waits for the disk. After an error the writer is still open: close() may be tried again.
  void close();

 private:
  struct Impl;
  explicit SummaryWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
