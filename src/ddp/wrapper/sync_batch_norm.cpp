#include "lockstep/ddp/sync_batch_norm.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "src/ddp/wrapper/has_sync_batch_norm.h"

namespace lockstep {

namespace {

// Exchanges statistics over the ranks of a group.
class RankStatistics : public StatisticsExchange {
 public:
  explicit RankStatistics(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  std::vector<double> gather(std::span<const double> own) override {
    if (group_->world_size() == 1) return {own.begin(), own.end()};
    std::vector<double> all(own.size() * static_cast<std::size_t>(group_->world_size()));
    group_->all_gather(own.data(), all.data(), own.size(), DType::kFloat64, {.purpose = {"batch norm statistics"}});
    return all;
  }
  void add_up(std::span<double> values) override {
    if (group_->world_size() > 1) group_->all_reduce(values, ReduceOp::kSum, {.purpose = {"batch norm gradients"}});
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

std::shared_ptr<StatisticsExchange> exchange_over(const char* caller, std::shared_ptr<ProcessGroup> group) {
  if (!group)
    throw InvalidArgument("{}: the group is null: pass the one that trains, from init_process_group()", caller);
  return std::make_shared<RankStatistics>(std::move(group));
}

}  // namespace

namespace nn {

SyncBatchNorm::SyncBatchNorm(std::int64_t channels, std::shared_ptr<ProcessGroup> group,
                             const BatchNormLayerOptions& options)
    : BatchNorm(channels, options) {
  exchange_statistics(exchange_over("SyncBatchNorm", std::move(group)));
}

std::int64_t convert_sync_batchnorm(Module& module, const std::shared_ptr<ProcessGroup>& group) {
  const auto exchange = exchange_over("convert_sync_batchnorm", group);
  std::int64_t converted = 0;
  module.apply([&](Module& layer) {
    auto* const norm = dynamic_cast<BatchNorm*>(&layer);
    if (norm == nullptr) return;
    norm->exchange_statistics(exchange);
    ++converted;
  });
  return converted;
}

}  // namespace nn

bool has_sync_batch_norm(const nn::Module& module) {
  const auto* const norm = dynamic_cast<const nn::BatchNorm*>(&module);
  if (norm != nullptr && norm->exchanges_statistics()) return true;
  const auto& children = module.children();
  return std::any_of(children.begin(), children.end(),
                     [](const auto& child) { return has_sync_batch_norm(*child.second); });
}

}  // namespace lockstep
