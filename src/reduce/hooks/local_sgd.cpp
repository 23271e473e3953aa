// Hooks with which each rank keeps its own gradients.
#include <fmt/format.h>

#include "lockstep/reduce/hooks.h"
#include "src/reduce/bucket_views.h"
#include "src/reduce/hooks/hook_parts.h"

namespace lockstep::hooks {

namespace {

class NoOpHook : public BucketHook {
 public:
  std::string describe() const override { return "no_op"; }
  Work reduce(ProcessGroup&, const GradBucket&) override { return {}; }
  bool averages() const override { return false; }
  bool can_be_captured() const override { return true; }
};

class PostLocalSgdHook : public BucketHook {
 public:
  explicit PostLocalSgdHook(const PostLocalSgdOptions& options) : options_(options) {}

  std::string describe() const override {
    const std::string group = options_.subgroup ? fmt::format("{} ranks", options_.subgroup->world_size()) : "none";
    return fmt::format("post_local_sgd (start_step {}, subgroup {}){}", options_.start_step, group,
                       over(options_.next));
  }
  std::string refusal(std::span<const GradientInfo> gradients) const override {
    if (options_.start_step < 0)
      return fmt::format("comm_hook post_local_sgd: got start_step {}, expected 0 or more passes", options_.start_step);
    return refusal_of_next(options_.next, "post_local_sgd", gradients, true);
  }
  void prepare(const ProcessGroup& group, std::span<const GradientInfo> gradients) override {
    if (options_.next) options_.next->prepare(group, gradients);
  }
  void undo(std::string_view parameter) override {
    if (options_.next) options_.next->undo(parameter);
  }
  std::vector<HookState> state() override {
    std::vector<HookState> all = options_.next ? options_.next->state() : std::vector<HookState>();
    all.push_back({"post_local_sgd.step", &step_, 1, DType::kInt64});
    return all;
  }
  bool averages() const override { return false; }

  Work reduce(ProcessGroup& group, const GradBucket& bucket) override {
    const std::int64_t step = bucket.is_last ? step_++ : step_;
    if (step < options_.start_step) return options_.next(group, bucket);
    return options_.subgroup ? average(*options_.subgroup, bucket) : Work();
  }

 private:
  const PostLocalSgdOptions options_;
  std::int64_t step_ = 0;  // completed passes
};

}  // namespace

CommHook no_op() { return std::make_shared<NoOpHook>(); }
CommHook post_local_sgd(const PostLocalSgdOptions& options) { return std::make_shared<PostLocalSgdHook>(options); }

}  // namespace lockstep::hooks
