#include "lockstep/reduce/reducer.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/base/message_text.h"
#include "src/reduce/bucket_memory.h"
#include "src/reduce/bucket_views.h"
#include "src/reduce/wide_average.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

class Reducer::Impl {
 public:
  Impl(std::shared_ptr<ProcessGroup> group, std::vector<GradientInfo> gradients, ReducerOptions options)
      : group_(std::move(group)),
        gradients_(std::move(gradients)),
        get_factor_(std::move(options.factor)),
        before_reduction_(std::move(options.before_reduction)),
        after_reduction_(std::move(options.after_reduction)),
        comm_hook_(std::move(options.comm_hook)),
        caps_(std::move(options.caps)),
        layouts_(plan_buckets(gradients_, caps_)),
        views_(views_of(gradients_, layouts_)),
        buckets_(layouts_.size()),
        places_(gradients_.size()),
        times_(layouts_.size()) {
    if (comm_hook_) {
      if (const std::string refusal = comm_hook_->refusal(gradients_); !refusal.empty())
        throw InvalidArgument("reducer: {}", refusal);
      comm_hook_->prepare(*group_, gradients_);
    }
    BucketMemory memory(*group_, layouts_);
    for (std::size_t b = 0; b < layouts_.size(); ++b) {
      buckets_[b].memory = memory.next();
      views_.buckets[b].buffer = buckets_[b].memory.data();
      for (const Slot& slot : layouts_[b].slots) places_[slot.gradient] = {b, slot.offset};
    }
    missing_.reserve(gradients_.size());
    arrivals_.reserve(gradients_.size());
    for (const GradientInfo& gradient : gradients_)
      if (get_factor_ && gradient.dtype != DType::kFloat32 && gradient.dtype != DType::kFloat16 &&
          gradient.dtype != DType::kBFloat16)
        throw InvalidArgument("reducer: the factor is for gradients of float32, float16 and bfloat16, '{}' is {}",
                              gradient.name, name_of(gradient.dtype));
  }

  ~Impl() { abandon_pass(); }

  Buffer slot(std::size_t gradient) const {
    const GradientPlace& place = place_of(gradient);
    return buckets_[place.bucket].memory.window(place.offset, gradients_[gradient].bytes());
  }

  Buffer memory(std::size_t bucket) const {
    LOCKSTEP_CHECK(bucket < buckets_.size(), "bucket {} of {}", bucket, buckets_.size());
    return buckets_[bucket].memory;
  }

  void reduce_by(std::function<Work(std::size_t)> start) {
    if (in_pass_) throw InvalidArgument("Reducer::reduce_by: called during a pass: call it between passes");
    start_ = std::move(start);
  }

  void set_on_reduced(std::function<void(std::size_t)> call) {
    if (in_pass_) throw InvalidArgument("Reducer::set_on_reduced: called during a pass: call it between passes");
    on_reduced_ = std::move(call);
  }

  void mark_ready(std::size_t gradient) {
    GradientPlace& place = place_of(gradient);
    if (!in_pass_) begin_pass();
    if (place.ready)
      throw Error(
          "reducer: the gradient of '{}' was marked ready twice in one pass: was backward run twice without a step "
          "between (use no_sync() for all but the last), or does a second graph use the parameter?",
          gradients_[gradient].name);
    place.ready = true;
    arrivals_.push_back(gradient);
    if (--buckets_[place.bucket].pending == 0) {
      times_[place.bucket].ready = seconds_between(pass_begin_, Clock::now());
      launch_full_buckets();
    }
    if (on_reduced_)
      while (next_result_ < next_to_launch_ && buckets_[next_result_].work.done()) take_result(next_result_);
  }

  std::vector<std::size_t> finish() {
    if (!in_pass_) begin_pass();
    missing_.clear();
    for (std::size_t g = 0; g < gradients_.size(); ++g)
      if (!places_[g].ready) missing_.push_back(g);
    for (const std::size_t gradient : missing_) {
      clear(gradient);
      place_of(gradient).missing = true;
      mark_ready(gradient);
    }
    LOCKSTEP_CHECK(next_to_launch_ == buckets_.size(), "{} of {} buckets were launched", next_to_launch_,
                   buckets_.size());
    for (std::size_t b = next_result_; b < buckets_.size(); ++b) take_result(b);
    in_pass_ = false;
    if (comm_hook_ && comm_hook_->averages() && !std::exchange(is_checked_, true))
      check_is_reduced_alike(*group_, views_.buckets);
    return missing_;
  }

  void undo(std::span<const std::size_t> gradients) {
    if (comm_hook_ && !start_)
      for (const std::size_t gradient : gradients) comm_hook_->undo(gradients_[gradient].name);
  }

  bool rebuild(std::span<const std::size_t> order, const std::function<void(std::size_t, const Buffer&)>& moved) {
    LOCKSTEP_CHECK(!in_pass_, "rebuild() was called during a pass");
    std::vector<BucketLayout> layouts = plan_buckets(gradients_, caps_, order);
    if (layouts == layouts_) return false;
    abandon_pass();  // a GPU may still be running the last pass
    BucketViews views = views_of(gradients_, layouts);
    std::vector<Bucket> buckets(layouts.size());
    std::vector<GradientPlace> places(gradients_.size());
    for (Bucket& old : buckets_) old.pending = layouts_[static_cast<std::size_t>(&old - buckets_.data())].slots.size();
    BucketMemory memory(*group_, layouts);
    for (std::size_t b = 0; b < layouts.size(); ++b) {
      buckets[b].memory = memory.next();
      views.buckets[b].buffer = buckets[b].memory.data();
      Device& device = *buckets[b].memory.device();
      for (const Slot& slot : layouts[b].slots) {
        const std::size_t bytes = gradients_[slot.gradient].bytes();
        const Buffer place = buckets[b].memory.window(slot.offset, bytes);
        Bucket& old = buckets_[places_[slot.gradient].bucket];
        device.copy(place.data(), old.memory.data() + places_[slot.gradient].offset, bytes, device.default_stream());
        places[slot.gradient] = {b, slot.offset};
        moved(slot.gradient, place);
        if (--old.pending == 0) old.memory = {};
      }
    }
    layouts_ = std::move(layouts);
    views_ = std::move(views);
    buckets_ = std::move(buckets);
    places_ = std::move(places);
    times_.reserve(buckets_.size());
    return true;
  }

  // Nothing may write into the buckets after it returns.
  void abandon_pass() noexcept {
    for (Bucket& bucket : buckets_) {
      try {
        std::exchange(bucket.work, {}).wait();
      } catch (const std::exception& error) {
        log::debug("reducer: dropped a bucket: {}", error.what());
      }
    }
    if (std::exchange(hook_failed_, false)) await_hook();
    in_pass_ = false;
  }

  bool is_ready(std::size_t gradient) const { return in_pass_ && place_of(gradient).ready; }
  bool in_pass() const { return in_pass_; }
  const std::vector<GradientInfo>& gradients() const { return gradients_; }
  const std::vector<BucketLayout>& layouts() const { return layouts_; }
  std::span<const BucketTimes> times() const { return times_; }
  std::span<const std::size_t> arrivals() const { return arrivals_; }

 private:
  struct Bucket {
    Buffer memory;
    std::size_t pending = 0;  // gradients that are not ready yet
    Work work;
  };
  struct GradientPlace {
    std::size_t bucket = 0;
    std::size_t offset = 0;
    bool ready = false, missing = false;  // in this pass; missing: finish() found it unmarked
  };

  GradientPlace& place_of(std::size_t gradient) {
    LOCKSTEP_CHECK(gradient < places_.size(), "gradient {} of {}", gradient, places_.size());
    return places_[gradient];
  }
  const GradientPlace& place_of(std::size_t gradient) const { return const_cast<Impl*>(this)->place_of(gradient); }

  void begin_pass() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) buckets_[b].pending = layouts_[b].slots.size();
    for (GradientPlace& place : places_) place.ready = place.missing = false;
    times_.assign(buckets_.size(), {});
    arrivals_.clear();
    next_to_launch_ = next_result_ = 0;
    pass_begin_ = Clock::now();
    in_pass_ = true;
  }

  // Launches in strict bucket order, the same on all ranks, whatever the order in which this rank's gradients become
  // ready.
  void launch_full_buckets() {
    while (next_to_launch_ < buckets_.size() && buckets_[next_to_launch_].pending == 0) {
      if (next_to_launch_ == 0 && get_factor_) factor_ = get_factor_();
      const std::size_t b = next_to_launch_++;
      if (before_reduction_) before_reduction_(b);
      if (factor_ != 1) multiply(b);
      times_[b].launched = seconds_between(pass_begin_, Clock::now());
      buckets_[b].work = start_ ? start_(b) : comm_hook_ ? run_hook(b) : average_of(b);
    }
  }

  Work average_of(std::size_t b) {
    const GradBucket& bucket = views_.buckets[b];
    if (!WideAverage::is_for(*group_, bucket)) return average(*group_, bucket);
    return wide_average_.start(*group_, bucket, slice_bytes(layouts_[b], group_->world_size()) / size_of(bucket.dtype));
  }

  // A hook that threw has lost the Work of the calls that it had queued.
  void await_hook() noexcept {
    for (std::size_t b = 0; b < layouts_.size(); ++b)
      if (b == 0 || layouts_[b].device != layouts_[b - 1].device) group_->backend(layouts_[b].device).await_idle();
  }

  // A hook may fail on one rank only; the group is aborted because the other ranks would wait for its call.
  Work run_hook(std::size_t b) {
    const GradBucket& bucket = views_.buckets[b];
    for (std::size_t s = 0; s < bucket.slots.size(); ++s)
      views_.slots[b][s].has_gradient = !places_[layouts_[b].slots[s].gradient].missing;
    try {
      return comm_hook_(*group_, bucket);
    } catch (...) {
      hook_failed_ = true;
      if (group_->world_size() > 1)
        group_->abort(fmt::format("the comm hook {} failed in bucket {} ('{}', ...): {}", comm_hook_->describe(),
                                  bucket.index, bucket.slots.front().name, exception_text(std::current_exception())));
      throw;
    }
  }

  void take_result(std::size_t bucket) {
    const auto before = Clock::now();
    Device& device = *buckets_[bucket].memory.device();
    buckets_[bucket].work.stream_wait(
        device.default_stream());  // keep the work: a GPU may still be running it when the reducer is destroyed
    times_[bucket].waited = seconds_between(before, Clock::now());
    next_result_ = bucket + 1;
    if (after_reduction_) after_reduction_(bucket);
    if (on_reduced_) on_reduced_(bucket);
  }

  void multiply(std::size_t bucket) {
    const Buffer& memory = buckets_[bucket].memory;
    const DType type = layouts_[bucket].dtype;
    const Shape shape{static_cast<std::int64_t>(layouts_[bucket].bytes / size_of(type))};
    Device& device = *memory.device();
    device.kernels().scale({memory.data(), type, shape}, factor_, {memory.data(), type, shape},
                           device.default_stream());
  }

  // Zero bits are 0 in every dtype, and slots are full cache lines, so they can be filled as floats.
  void clear(std::size_t gradient) {
    const Buffer memory = slot(gradient);
    Device& device = *memory.device();
    const auto floats = static_cast<std::int64_t>((memory.bytes() + sizeof(float) - 1) / sizeof(float));
    device.kernels().fill({reinterpret_cast<float*>(memory.data()), {floats}}, 0, device.default_stream());
  }

  const std::shared_ptr<ProcessGroup> group_;
  const std::vector<GradientInfo> gradients_;
  const std::function<float()> get_factor_;
  const std::function<void(std::size_t)> before_reduction_, after_reduction_;
  const CommHook comm_hook_;
  std::function<Work(std::size_t)> start_;  // instead of the hook, if set
  std::function<void(std::size_t)> on_reduced_;
  const BucketCaps caps_;
  std::vector<BucketLayout> layouts_;
  BucketViews views_;  // views of the layouts
  std::vector<Bucket> buckets_;
  WideAverage wide_average_;
  std::vector<GradientPlace> places_;  // by gradient
  std::vector<BucketTimes> times_;
  std::vector<std::size_t> missing_, arrivals_;
  std::size_t next_to_launch_ = 0, next_result_ = 0;
  float factor_ = 1;  // factor of this pass
  Clock::time_point pass_begin_;
  bool in_pass_ = false, is_checked_ = false, hook_failed_ = false;
};

Reducer::Reducer(std::shared_ptr<ProcessGroup> group, std::vector<GradientInfo> gradients, ReducerOptions options)
    : impl_(std::make_unique<Impl>(std::move(group), std::move(gradients), std::move(options))) {}
Reducer::~Reducer() = default;

Buffer Reducer::slot(std::size_t gradient) const { return impl_->slot(gradient); }
Buffer Reducer::memory(std::size_t bucket) const { return impl_->memory(bucket); }
void Reducer::reduce_by(std::function<Work(std::size_t bucket)> start) { impl_->reduce_by(std::move(start)); }
void Reducer::set_on_reduced(std::function<void(std::size_t bucket)> call) { impl_->set_on_reduced(std::move(call)); }

void Reducer::mark_ready(std::size_t gradient) {
  try {
    impl_->mark_ready(gradient);
  } catch (...) {
    impl_->abandon_pass();
    throw;
  }
}

bool Reducer::is_ready(std::size_t gradient) const { return impl_->is_ready(gradient); }

std::vector<std::size_t> Reducer::finish() {
  try {
    return impl_->finish();
  } catch (...) {
    impl_->abandon_pass();
    throw;
  }
}

void Reducer::undo(std::span<const std::size_t> gradients) { impl_->undo(gradients); }
void Reducer::abandon_pass() noexcept { impl_->abandon_pass(); }
std::span<const std::size_t> Reducer::arrival_order() const { return impl_->arrivals(); }
bool Reducer::rebuild(std::span<const std::size_t> order,
                      const std::function<void(std::size_t, const Buffer&)>& moved) {
  return impl_->rebuild(order, moved);
}

bool Reducer::in_pass() const { return impl_->in_pass(); }
const std::vector<GradientInfo>& Reducer::gradients() const { return impl_->gradients(); }
const std::vector<BucketLayout>& Reducer::buckets() const { return impl_->layouts(); }
std::span<const BucketTimes> Reducer::last_pass() const { return impl_->times(); }

}  // namespace lockstep
