// Sends gradients as products of two thin matrices (Vogels, Karimireddy, Jaggi 2019, algorithm 1 with the error
// feedback of algorithm 2).
//
// A parameter is a matrix M (rows x columns) whose rows are its first dimension; r is the minimum of matrix_rank, rows
// and columns. P (rows x r) and Q (columns x r) are stored transposed: r contiguous rows. Each bucket takes two calls:
// one for P of all its matrices and its uncompressed parameters, one for all Q. They send r (rows + columns) values
// instead of rows * columns, plus up to 15 zeros after each, so that all begin at multiples of 64 bytes.
//
// After the calls all ranks have the same P and Q. They compute the same orthonormal P and the same product, because
// the device's order of operations depends only on the extents.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/reduce/compression_kernels.h"
#include "lockstep/reduce/hooks.h"
#include "src/reduce/hooks/gradient_memory.h"
#include "src/reduce/hooks/hook_parts.h"

namespace lockstep::hooks {

namespace {

struct PowerMemory {
  PowerSgdMatrix matrix;  // rank 0: sent uncompressed
  StateFloats q;          // from the last pass; zero rows are drawn anew
  StateFloats error;      // empty without error feedback
  StateBefore q_before, error_before;
};

struct PowerPart {
  std::string name;
  std::size_t offset = 0, count = 0;
  std::size_t p_at = 0, q_at = 0;  // in values from the start of the messages
  PowerMemory* memory = nullptr;
  std::uint64_t stream = 0;  // of random numbers

  bool travels_whole() const { return memory->matrix.rank == 0; }
  std::size_t p_count() const {
    return travels_whole() ? count : static_cast<std::size_t>(memory->matrix.rank * memory->matrix.rows);
  }
};

struct PowerJob {
  Device* device = nullptr;
  const PowerSgdKernels* kernels = nullptr;
  float* values = nullptr;
  std::vector<PowerPart> parts;
  Buffer p, q;
  Buffer are_finite;  // one int32 per part: whether the averaged P is finite in this pass, the same on all ranks
  std::size_t p_count = 0, q_count = 0;
  bool is_new = false;  // the messages' memory is uninitialised
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  bool warm_start = true;

  float* values_of(const PowerPart& part) const { return values + part.offset; }
  float* p_of(const PowerPart& part) const { return reinterpret_cast<float*>(p.data()) + part.p_at; }
  float* q_of(const PowerPart& part) const { return reinterpret_cast<float*>(q.data()) + part.q_at; }
  std::int32_t* is_finite(const PowerPart& part) const {
    return reinterpret_cast<std::int32_t*>(are_finite.data()) + (&part - parts.data());
  }
  // Random rows are the same on all ranks: they depend on the name and, after the first step, on the step.
  PowerSgdRandom random_of(const PowerPart& part) const {
    return {seed, part.stream + static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(kMostMatrixRank)};
  }
};

OutputView floats(float* data, std::size_t count) { return {data, {static_cast<std::int64_t>(count)}}; }

// Zeroes the padding of messages, because `next` may read it.
void clear_messages(PowerJob& job, Stream& stream) {
  const KernelTable& kernels = job.device->kernels();
  kernels.fill(floats(reinterpret_cast<float*>(job.p.data()), job.p_count), 0, stream);
  kernels.fill(floats(reinterpret_cast<float*>(job.q.data()), job.q_count), 0, stream);
  job.is_new = false;
}

void make_p(PowerJob& job, Stream& stream) {
  if (job.is_new) clear_messages(job, stream);
  for (const PowerPart& part : job.parts) {
    const PowerMemory& memory = *part.memory;
    float* const values = job.values_of(part);
    if (part.travels_whole()) {
      job.device->copy(job.p_of(part), values, part.count * sizeof(float), stream);
      continue;
    }
    memory.q_before.keep(memory.q, *job.device, stream);
    memory.error_before.keep(memory.error, *job.device, stream);
    const OutputView all = floats(values, part.count);
    if (memory.error.count() != 0) job.device->kernels().add(all, floats(memory.error.data(), part.count), all, stream);
    job.kernels->refill(memory.matrix, job.random_of(part), !job.warm_start, memory.q.data(), stream);
    job.kernels->multiply(memory.matrix, values, memory.q.data(), job.p_of(part), stream);
  }
}

void make_q(const PowerJob& job, Stream& stream) {
  for (const PowerPart& part : job.parts) {
    float* const values = job.values_of(part);
    if (part.travels_whole()) {
      job.device->copy(values, job.p_of(part), part.count * sizeof(float), stream);
      continue;
    }
    job.kernels->orthonormalise(part.memory->matrix, job.p_of(part), job.is_finite(part), stream);
    job.kernels->multiply_transposed(part.memory->matrix, values, job.p_of(part), job.q_of(part), stream);
  }
}

// A value that is not finite shows in the average but not in the next pass.
void expand(const PowerJob& job, Stream& stream) {
  for (const PowerPart& part : job.parts)
    if (!part.travels_whole())
      job.kernels->expand(part.memory->matrix, job.p_of(part), job.q_of(part), job.is_finite(part), job.values_of(part),
                          part.memory->error.data(), part.memory->q.data(), stream);
}

// Returns the stream of random numbers for a name.
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return hash;
}

class PowerSgdHook : public BucketHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options) : options_(options) {}

  std::string describe() const override {
    return fmt::format(
        "power_sgd (matrix_rank {}, start_step {}, warm_start {}, error_feedback {}, min_compression {}, seed {}){}",
        options_.matrix_rank, options_.start_step, options_.warm_start, options_.error_feedback,
        options_.min_compression, options_.seed, over(options_.next));
  }
  std::string refusal(std::span<const GradientInfo> gradients) const override {
    if (options_.matrix_rank < 1 || options_.matrix_rank > kMostMatrixRank)
      return fmt::format("comm_hook power_sgd: got matrix_rank {}, expected 1 to {}", options_.matrix_rank,
                         kMostMatrixRank);
    if (options_.start_step < 0 || !(options_.min_compression > 0))
      return fmt::format(
          "comm_hook power_sgd: got start_step {} and min_compression {}, expected a step of 0 or more and a factor "
          "above 0",
          options_.start_step, options_.min_compression);
    const std::string refusal = refusal_of_gradients("power_sgd", gradients);
    return refusal.empty() ? refusal_of_next(options_.next, "power_sgd", gradients, false) : refusal;
  }
  void prepare(const ProcessGroup& group, std::span<const GradientInfo> gradients) override {
    jobs_.clear();  // jobs of a former wrapper point to the memory of its parameters
    memory_.prepare(group, gradients, [this](PowerMemory& memory, const GradientInfo& gradient, Device& device) {
      memory.matrix = matrix_of(gradient);
      if (memory.matrix.rank == 0) return;
      memory.q = StateFloats(device, static_cast<std::size_t>(memory.matrix.rank * memory.matrix.columns));
      if (options_.error_feedback) memory.error = StateFloats(device, gradient.count);
    });
    if (options_.next) options_.next->prepare(group, gradients);
  }
  void undo(std::string_view parameter) override {
    PowerMemory& memory = memory_.of(parameter);
    Device& device = memory_.device_of(parameter);
    memory.q_before.restore(memory.q, device);
    memory.error_before.restore(memory.error, device);
    if (options_.next) options_.next->undo(parameter);
  }
  std::vector<HookState> state() override {
    std::vector<HookState> all = options_.next ? options_.next->state() : std::vector<HookState>();
    all.push_back({"power_sgd.step", &step_, 1, DType::kInt64});
    memory_.for_each([&](const std::string& name, PowerMemory& memory) {
      memory.q.append_to(all, "power_sgd.q." + name, false);
      memory.error.append_to(all, "power_sgd.error." + name, true);
    });
    return all;
  }

  Work reduce(ProcessGroup& group, const GradBucket& bucket) override {
    const std::int64_t step = bucket.is_last ? step_++ : step_;
    if (step < options_.start_step) return options_.next(group, bucket);
    PowerJob* const job = &jobs_.of(group, bucket);
    job->device = &device_of(group, bucket.device);
    job->kernels = &job->device->kernels().families.get<PowerSgdKernels>();
    job->values = static_cast<float*>(bucket.buffer);
    job->seed = options_.seed;
    job->step = step;
    job->warm_start = options_.warm_start;
    if (!fits(job->parts, bucket)) plan(*job, bucket);
    if (job->q_count == 0) return options_.next(group, bucket);  // the entire bucket is sent uncompressed
    for (std::size_t s = 0; s < job->parts.size(); ++s) {
      PowerMemory& memory = *job->parts[s].memory;
      memory.q_before.begin(memory.q, *job->device, !bucket.slots[s].has_gradient);
      memory.error_before.begin(memory.error, *job->device, !bucket.slots[s].has_gradient);
    }
    resize(job->p, group, job->p_count * sizeof(float), bucket.device);
    resize(job->q, group, job->q_count * sizeof(float), bucket.device);
    resize(job->are_finite, *job->device, job->parts.size() * sizeof(std::int32_t));
    group.compute_async([job](Stream& stream) { make_p(*job, stream); }, bucket.device);
    send(group, bucket, job->p, job->p_count, 0).then([job](Stream& stream) { make_q(*job, stream); });
    return send(group, bucket, job->q, job->q_count, 1).then([job](Stream& stream) { expand(*job, stream); });
  }

 private:
  PowerSgdMatrix matrix_of(const GradientInfo& gradient) const {
    if (gradient.shape.dims() < 2 || gradient.count == 0) return {};
    const std::int64_t rows = gradient.shape[0], columns = static_cast<std::int64_t>(gradient.count) / rows;
    const std::int64_t rank = std::min({options_.matrix_rank, rows, columns});
    const double sent = static_cast<double>(rank) * static_cast<double>(rows + columns) * options_.min_compression;
    return sent < static_cast<double>(gradient.count) ? PowerSgdMatrix{rows, columns, rank} : PowerSgdMatrix{};
  }

  void plan(PowerJob& job, const GradBucket& bucket) {
    constexpr std::size_t kLine = 64 / sizeof(float);
    const auto padded = [](std::size_t count) { return (count + kLine - 1) / kLine * kLine; };
    job.parts.clear();
    job.p_count = job.q_count = 0;
    for (const GradSlot& slot : bucket.slots) {
      PowerMemory& memory = memory_.of(slot.name);
      job.parts.push_back({.name = std::string(slot.name),
                           .offset = slot.offset,
                           .count = static_cast<std::size_t>(slot.shape.count()),
                           .p_at = job.p_count,
                           .q_at = job.q_count,
                           .memory = &memory,
                           .stream = stream_of(slot.name)});
      job.p_count += padded(job.parts.back().p_count());
      job.q_count += padded(memory.q.count());
    }
    job.is_new = true;
  }

  // Averages a message with `next`.
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
