#include "bench/lib/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "bench/lib/bench_common.h"
#include "lockstep/core/device.h"

namespace lockstep::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kFeatures = 128, kPieceRows = 8;  // some microseconds, in a core's own cache
constexpr std::size_t kRoundsToWarmUp = 2;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class Product {
 public:
  Product() : x_(kPieceRows * kFeatures, 0.25F), weight_(kFeatures * kFeatures, 0.5F), y_(x_.size()) {}

  void set_pieces(std::int64_t pieces) { pieces_ = std::max<std::int64_t>(1, pieces); }
  std::int64_t pieces() const { return pieces_; }

  void run_piece() {
    Device& cpu = cpu_device();
    const Shape piece = {kPieceRows, kFeatures};
    cpu.kernels().linear({x_.data(), piece}, {weight_.data(), {kFeatures, kFeatures}}, {}, false, {y_.data(), piece},
                         cpu.default_stream());
  }
  double time() {
    const auto start = Clock::now();
    for (std::int64_t piece = 0; piece < pieces_; ++piece) run_piece();
    return us_since(start);
  }

 private:
  std::int64_t pieces_ = 16;
  std::vector<float> x_, weight_, y_;
};

struct Times {
  std::vector<double> product_alone, all_reduce_alone, product_overlapped, all_reduce_overlapped, together;
};

class OverlapRun {
 public:
  OverlapRun(std::shared_ptr<ProcessGroup> group, const MeasureOptions& options, std::size_t bytes)
      : group_(std::move(group)),
        options_(options),
        memory_(group_, options, bytes),
        layout_(layout_of(*options.kind, bytes, options.dtype, group_->world_size(), options.in_place)),
        ends_(ends_of(layout_, memory_.memory(), group_->rank())),
        data_(*options.kind, layout_,
              {ends_.send, ends_.receive, layout_.count, options.dtype, options.op, 0, premul_factor(group_->rank())},
              group_->rank()) {}

  Overlap run() {
    match_product();
    const std::size_t rounds =
        options_.rounds != 0 ? options_.rounds : std::clamp<std::size_t>(rounds_for(layout_.message_bytes()), 7, 200);
    Times times;
    for (std::size_t round = 0; round < rounds + kRoundsToWarmUp; ++round) {
      if (round == kRoundsToWarmUp) times = {};
      times.product_alone.push_back(slowest(product_alone()));
      times.all_reduce_alone.push_back(slowest(all_reduce_alone()));
      run_both(times);
    }
    Overlap result{.bytes = layout_.message_bytes(),
                   .rows = product_.pieces() * kPieceRows,
                   .features = kFeatures,
                   .rounds = rounds};
    result.product_alone = quantile(times.product_alone, 0.5);
    result.all_reduce_alone = quantile(times.all_reduce_alone, 0.5);
    result.product_overlapped = quantile(times.product_overlapped, 0.5);
    result.all_reduce_overlapped = quantile(times.all_reduce_overlapped, 0.5);
    result.together = quantile(times.together, 0.5);
    return result;
  }

 private:
  double slowest(double us) {
    group_->all_reduce(std::span(&us, 1), ReduceOp::kMax);
    return us;
  }
  void meet() {
    data_.fill(memory_.memory(), Values::kExact);
    group_->barrier();
  }
  Work start_all_reduce() {
    return group_->all_reduce_async(ends_.send, ends_.receive, layout_.count, options_.dtype, options_.op,
                                    {.factor = premul_factor(group_->rank())});
  }

  double product_alone() {
    meet();
    return product_.time();
  }
  double all_reduce_alone() {
    meet();
    const auto start = Clock::now();
    start_all_reduce().wait();
    return us_since(start);
  }

  void run_both(Times& times) {
    meet();
    const auto start = Clock::now();
    const Work work = start_all_reduce();
    double reduced = -1;
    for (std::int64_t piece = 0; piece < product_.pieces(); ++piece) {
      product_.run_piece();
      if (reduced < 0 && work.done()) reduced = us_since(start);
    }
    const double multiplied = us_since(start);
    work.wait();
    const double end = us_since(start);
    times.product_overlapped.push_back(slowest(multiplied));
    times.all_reduce_overlapped.push_back(slowest(reduced < 0 ? end : reduced));
    times.together.push_back(slowest(end));
  }

  // Makes the number of pieces equal on all ranks. Measures twice, because the first time caches may be cold.
  void match_product() {
    constexpr int kSamples = 5;
    for (int round = 0; round < 2; ++round) {
      std::vector<double> wanted, has;
      for (int sample = 0; sample < kSamples; ++sample) {
        wanted.push_back(slowest(all_reduce_alone()));
        has.push_back(slowest(product_alone()));
      }
      const double factor = quantile(wanted, 0) / std::max(quantile(has, 0), 0.01);
      product_.set_pieces(std::llround(factor * static_cast<double>(product_.pieces())));
    }
  }

  std::shared_ptr<ProcessGroup> group_;
  MeasureOptions options_;
  Measurement memory_;
  MessageLayout layout_;
  Memory ends_;
  TestData data_;
  Product product_;
};

double percent_more(double beside, double alone) { return alone > 0 ? 100 * (beside / alone - 1) : 0; }

// The share of the shorter one that was hidden by the longer one: 100 if both together take as long as the longer one
// alone.
double hidden_percent(const Overlap& o) {
  const double shorter = std::min(o.product_alone, o.all_reduce_alone);
  return shorter > 0 ? 100 * (o.product_alone + o.all_reduce_alone - o.together) / shorter : 0;
}

}  // namespace

Overlap measure_overlap(std::shared_ptr<ProcessGroup> group, const MeasureOptions& options, std::size_t bytes) {
  return OverlapRun(std::move(group), options, bytes).run();
}

void print_overlap(const Overlap& o) {
  fmt::print("{:<34} {:>12} {:>12} {:>10}\n", "", "alone (us)", "together (us)", "costs (%)");
  fmt::print("{:<34} {:>12.2f} {:>12.2f} {:>+10.1f}\n",
             fmt::format("product {} x {} x {}", o.rows, o.features, o.features), o.product_alone, o.product_overlapped,
             percent_more(o.product_overlapped, o.product_alone));
  fmt::print("{:<34} {:>12.2f} {:>12.2f} {:>+10.1f}\n", "all_reduce of " + bytes_text(o.bytes), o.all_reduce_alone,
             o.all_reduce_overlapped, percent_more(o.all_reduce_overlapped, o.all_reduce_alone));
  fmt::print("# both together: {:.2f} us, one after the other: {:.2f} us; {:.0f} % of the shorter one is hidden\n",
             o.together, o.product_alone + o.all_reduce_alone, hidden_percent(o));
}

nlohmann::ordered_json overlap_as_json(const Overlap& o) {
  return {{"bytes", o.bytes},
          {"product", {o.rows, o.features, o.features}},
          {"rounds", o.rounds},
          {"product_alone_us", rounded(o.product_alone, 2)},
          {"all_reduce_alone_us", rounded(o.all_reduce_alone, 2)},
          {"product_overlapped_us", rounded(o.product_overlapped, 2)},
          {"all_reduce_overlapped_us", rounded(o.all_reduce_overlapped, 2)},
          {"together_us", rounded(o.together, 2)},
          {"product_cost_percent", rounded(percent_more(o.product_overlapped, o.product_alone), 1)},
          {"all_reduce_cost_percent", rounded(percent_more(o.all_reduce_overlapped, o.all_reduce_alone), 1)},
          {"hidden_percent", rounded(hidden_percent(o), 1)}};
}

}  // namespace lockstep::bench
