// Gradients as products of two thin matrices (Vogels, Karimireddy, Jaggi 2019, algorithm 1 with the error feedback of algorithm 2).
//
// A parameter is a matrix M (rows x columns), its rows the first dimension; r is the smaller of matrix_rank and both. P (rows x r) and
// Q (columns x r) lie transposed: r rows, each next to itself. Two calls a bucket: P of all its matrices, and behind them its parameters
// that travel whole; Q of all. r (rows + columns) values instead of rows * columns.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/core/philox.h"
#include "lockstep/reduce/hooks.h"
#include "src/reduce/hooks/gradient_memory.h"
#include "src/reduce/hooks/hook_parts.h"
#include "src/reduce/hooks/thin_matrix.h"

namespace lockstep::hooks {

namespace {

struct PowerMemory {
  Extents extents;           // of rank 0: travels whole
  std::vector<float> q;      // of the pass before; rows that are zero begin anew
  std::vector<float> error;  // empty without error feedback
};

struct PowerPart {
  std::string name;
  std::size_t offset = 0, count = 0;
  std::size_t p_at = 0, q_at = 0;  // values from the messages' begin
  PowerMemory* memory = nullptr;
  std::uint64_t stream = 0;  // of random numbers
  bool is_finite = true;     // in this pass, as averaged: the same on all ranks
};

struct PowerJob {
  float* values = nullptr;
  std::vector<PowerPart> parts;
  Buffer p, q;
  std::size_t p_count = 0, q_count = 0;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  bool warm_start = true;

  float* p_of(const PowerPart& part) const { return reinterpret_cast<float*>(p.data()) + part.p_at; }
  float* q_of(const PowerPart& part) const { return reinterpret_cast<float*>(q.data()) + part.q_at; }
};

// The same numbers on all ranks: of the name, and of the step where it is not the first.
void fill_zero_rows(const PowerJob& job, PowerPart& part) {
  PowerMemory& memory = *part.memory;
  if (!job.warm_start) std::fill(memory.q.begin(), memory.q.end(), 0.0f);
  for (std::size_t j = 0; j < memory.extents.rank; ++j) {
    float* const row = memory.q.data() + j * memory.extents.columns;
    if (std::any_of(row, row + memory.extents.columns, [](float value) { return value != 0; })) continue;
    const std::uint64_t stream = part.stream + static_cast<std::uint64_t>(job.step) * kMostRank + j;
    for (std::size_t i = 0; i < memory.extents.columns; ++i)
      row[i] = static_cast<float>(philox_block(job.seed, stream, i / 4).words[i % 4] >> 8) * 0x1p-23f - 1;  // in [-1, 1)
  }
}

void make_p(PowerJob& job) {
  for (PowerPart& part : job.parts) {
    float* const values = job.values + part.offset;
    PowerMemory& memory = *part.memory;
    if (memory.extents.rank == 0) {
      std::memcpy(job.p_of(part), values, part.count * sizeof(float));
      continue;
    }
    for (std::size_t i = 0; i < memory.error.size(); ++i) values[i] += memory.error[i];
    fill_zero_rows(job, part);
    multiply(values, memory.q.data(), memory.extents, job.p_of(part));
  }
}

void make_q(PowerJob& job) {
  for (PowerPart& part : job.parts) {
    float* const values = job.values + part.offset;
    const Extents& extents = part.memory->extents;
    float* const p = job.p_of(part);
    if (extents.rank == 0) {
      std::memcpy(values, p, part.count * sizeof(float));
      continue;
    }
    part.is_finite = std::all_of(p, p + extents.rank * extents.rows, [](float value) { return std::isfinite(value); });
    if (!part.is_finite) std::memset(p, 0, extents.rank * extents.rows * sizeof(float));
    orthonormalise(p, extents);
    multiply_transposed(values, p, extents, job.q_of(part));
  }
}

// What is no number shows in the average, and is gone in the next pass.
void drop_what_is_no_number(PowerPart& part, float* values) {
  std::fill(values, values + part.count, std::numeric_limits<float>::quiet_NaN());
  std::fill(part.memory->q.begin(), part.memory->q.end(), 0.0f);
  std::fill(part.memory->error.begin(), part.memory->error.end(), 0.0f);
}

void expand(PowerJob& job) {
  for (PowerPart& part : job.parts) {
    PowerMemory& memory = *part.memory;
    const Extents& extents = memory.extents;
    if (extents.rank == 0) continue;
    float* const values = job.values + part.offset;
    const float* const q = job.q_of(part);
    if (!part.is_finite) {
      drop_what_is_no_number(part, values);
      continue;
    }
    std::memcpy(memory.q.data(), q, memory.q.size() * sizeof(float));
    if (!memory.error.empty()) std::memcpy(memory.error.data(), values, part.count * sizeof(float));
    multiply_out(job.p_of(part), q, extents, values);
    for (std::size_t i = 0; i < memory.error.size(); ++i) memory.error[i] -= values[i];
  }
}

class PowerSgdHook : public BucketHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : options_(options) {}

  std::string describe() const override {
    return fmt::format("power_sgd (matrix_rank {}, start_step {}, warm_start {}, error_feedback {}, min_compression {}, seed {}){}",
                       options_.matrix_rank, options_.start_step, options_.warm_start, options_.error_feedback, options_.min_compression,
                       options_.seed, over(options_.next));
  }
  std::string refusal(std::span<const GradientInfo> gradients) const override {
    if (options_.matrix_rank < 1 || options_.matrix_rank > kMostRank)
      return fmt::format("comm_hook power_sgd: a matrix_rank of {}; expected 1 to {}", options_.matrix_rank, kMostRank);
    if (options_.start_step < 0 || !(options_.min_compression > 0))
      return fmt::format("comm_hook power_sgd: start_step {}, min_compression {}; expected a step of 0 or more, and a factor above 0",
                         options_.start_step, options_.min_compression);
    const std::string refusal = refusal_of_gradients("power_sgd", gradients);
    return refusal.empty() ? refusal_of_next(options_.next, "power_sgd", gradients, false) : refusal;
  }
  void prepare(std::span<const GradientInfo> gradients) override {
    jobs_.clear();  // those of a former wrapper point to memory of its parameters
    memory_.prepare(gradients, [this](PowerMemory& memory, const GradientInfo& gradient) {
      memory.extents = extents_of(gradient);
      memory.q.assign(memory.extents.rank * memory.extents.columns, 0);
      if (options_.error_feedback && memory.extents.rank != 0) memory.error.assign(gradient.count, 0);
    });
    if (options_.next) options_.next->prepare(gradients);
  }
  std::vector<HookState> state() override {
    std::vector<HookState> all = options_.next ? options_.next->state() : std::vector<HookState>();
    all.push_back({"power_sgd.step", &step_, 1, DType::kInt64});
    memory_.for_each([&](const std::string& name, PowerMemory& memory) {
      if (!memory.q.empty()) all.push_back({"power_sgd.q." + name, memory.q.data(), memory.q.size()});
      if (!memory.error.empty())
        all.push_back({"power_sgd.error." + name, memory.error.data(), memory.error.size(), DType::kFloat32, true});
    });
    return all;
  }

  Work reduce(ProcessGroup& group, const GradBucket& bucket) override {
    const std::int64_t step = bucket.is_last ? step_++ : step_;
    if (step < options_.start_step) return options_.next(group, bucket);
    PowerJob* const job = &jobs_.of(group, bucket);
    job->values = static_cast<float*>(bucket.buffer);
    job->seed = options_.seed;
    job->step = step;
    job->warm_start = options_.warm_start;
    if (!fits(job->parts, bucket)) plan(*job, bucket);
    if (job->q_count == 0) return options_.next(group, bucket);  // all of it travels whole
    resize(job->p, group, job->p_count * sizeof(float), bucket.device);
    resize(job->q, group, job->q_count * sizeof(float), bucket.device);
    group.compute_async([job](Stream&) { make_p(*job); });
    send(group, bucket, job->p, job->p_count, 0).then([job](Stream&) { make_q(*job); });
    return send(group, bucket, job->q, job->q_count, 1).then([job](Stream&) { expand(*job); });
  }

 private:
  Extents extents_of(const GradientInfo& gradient) const {
    if (gradient.shape.dims() < 2 || gradient.count == 0) return {};
    const auto rows = static_cast<std::size_t>(gradient.shape[0]), columns = gradient.count / rows;
    const std::size_t rank = std::min({static_cast<std::size_t>(options_.matrix_rank), rows, columns});
    const double sent = static_cast<double>(rank) * static_cast<double>(rows + columns) * options_.min_compression;
    return sent < static_cast<double>(gradient.count) ? Extents{rows, columns, rank} : Extents{};
  }

  void plan(PowerJob& job, const GradBucket& bucket) {
    job.parts.clear();
    job.p_count = job.q_count = 0;
    for (const GradSlot& slot : bucket.slots) {
      PowerMemory& memory = memory_.of(slot.name);
      const auto count = static_cast<std::size_t>(slot.shape.count());
      job.parts.push_back({.name = std::string(slot.name),
                           .offset = slot.offset,
                           .count = count,
                           .p_at = job.p_count,
                           .q_at = job.q_count,
                           .memory = &memory,
                           .stream = stream_of(slot.name)});
      job.p_count += memory.extents.rank == 0 ? count : memory.extents.rank * memory.extents.rows;
      job.q_count += memory.q.size();
    }
  }

  // The average of a message, by `next`.
  Work send(ProcessGroup& group, const GradBucket& bucket, const Buffer& memory, std::size_t count, int which) {
    GradBucket message = bucket;
    message.buffer = memory.data();
    message.count = count;
    message.slots = {};
    message.message = 2 * bucket.message + which;
    return options_.next(group, message);
  }

  const PowerSgdOptions options_;
  std::int64_t step_ = 0;
  ByParameter<PowerMemory> memory_;
  Jobs<PowerJob> jobs_;
};

}  // namespace

CommHook power_sgd(const PowerSgdOptions& options) { return std::make_shared<PowerSgdHook>(options); }

}  // namespace lockstep::hooks
