#include "src/train/strategies/model_parallel/pipeline_links.h"

#include <array>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::train {

// -- within a process

class LocalPipeline::Links : public StageLinks {
 public:
  Links(LocalPipeline& pipeline, int stage) : pipeline_(pipeline), stage_(static_cast<std::size_t>(stage)) {}

  Activation receive_activation(Device& device) override {
    Activation activation = pipeline_.take(before().activations);
    activation.values = arrived(activation.values, device);
    return activation;
  }
  Tensor receive_gradient(Device& device) override { return arrived(pipeline_.take(after().gradients), device); }
  void send_activation(const Activation& activation) override {
    activation.values.device().default_stream().synchronize();  // the next device reads it
    const std::lock_guard lock(pipeline_.mutex_);
    after().bytes_on += activation.values.bytes();
    after().activations.push_back(activation);
    pipeline_.changed_.notify_all();
  }
  void send_gradient(const Tensor& gradient) override {
    gradient.device().default_stream().synchronize();
    const std::lock_guard lock(pipeline_.mutex_);
    before().bytes_back += gradient.bytes();
    before().gradients.push_back(gradient);
    pipeline_.changed_.notify_all();
  }

 private:
  // Waits for the copy, because the sender may free or reuse its memory.
  static Tensor arrived(const Tensor& sent, Device& device) {
    const Tensor here = sent.to(device);
    device.default_stream().synchronize();
    return here;
  }
  Boundary& before() const { return pipeline_.boundaries_[stage_ - 1]; }
  Boundary& after() const { return pipeline_.boundaries_[stage_]; }

  LocalPipeline& pipeline_;
  const std::size_t stage_;
};

LocalPipeline::LocalPipeline(int stages) : boundaries_(static_cast<std::size_t>(stages)) {
  for (int stage = 0; stage < stages; ++stage) links_.push_back(std::make_unique<Links>(*this, stage));
}

LocalPipeline::~LocalPipeline() = default;

StageLinks& LocalPipeline::links(int stage) { return *links_[static_cast<std::size_t>(stage)]; }

void LocalPipeline::begin() {
  const std::lock_guard lock(mutex_);
  failure_ = nullptr;
  for (Boundary& boundary : boundaries_) {
    boundary.activations.clear();
    boundary.gradients.clear();
  }
}

void LocalPipeline::fail(std::exception_ptr exception) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(exception);
  changed_.notify_all();
}

void LocalPipeline::rethrow() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

std::uint64_t LocalPipeline::sent(int from, int to) const {
  const std::lock_guard lock(mutex_);
  if (to == from + 1) return boundaries_[static_cast<std::size_t>(from)].bytes_on;
  return to + 1 == from ? boundaries_[static_cast<std::size_t>(to)].bytes_back : 0;
}

template <typename T> T LocalPipeline::take(std::deque<T>& queue) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || !queue.empty(); });
  if (failure_) throw StageStopped();
  T front = std::move(queue.front());
  queue.pop_front();
  return front;
}

// -- between ranks: a header, then the values

namespace {

constexpr int kOn = 0, kBack = 1;  // tags
constexpr std::size_t kMostDims = 8;
// dtype, wants_gradient, seed, next_stream, next_dropout, dims, extents
constexpr std::size_t kHeader = 6 + kMostDims;

std::vector<std::int64_t> header_of(const Activation& message) {
  const Shape& shape = message.values.shape();
  if (shape.extents().size() > kMostDims)
    throw InvalidArgument(
        "model_parallel: a stage returned a tensor of shape {}; between ranks at most {} dimensions are supported",
        shape.text(), kMostDims);
  std::vector<std::int64_t> header(kHeader, 0);
  header[0] = static_cast<std::int64_t>(message.values.dtype());
  header[1] = message.wants_gradient ? 1 : 0;
  header[2] = static_cast<std::int64_t>(message.random.seed);
  header[3] = static_cast<std::int64_t>(message.random.next_stream);
  header[4] = static_cast<std::int64_t>(message.random.next_dropout);
  header[5] = static_cast<std::int64_t>(shape.extents().size());
  for (std::size_t i = 0; i < shape.extents().size(); ++i) header[6 + i] = shape.extents()[i];
  return header;
}

}  // namespace

Activation RankLinks::receive_activation(Device& device) { return receive(group_->rank() - 1, kOn, device); }
Tensor RankLinks::receive_gradient(Device& device) { return receive(group_->rank() + 1, kBack, device).values; }
void RankLinks::send_activation(const Activation& activation) { send(activation, group_->rank() + 1, kOn); }
void RankLinks::send_gradient(const Tensor& gradient) { send({gradient, {}, false}, group_->rank() - 1, kBack); }

void RankLinks::send(const Activation& message, int to, int tag) {
  while (!pending_.empty() && pending_.front().values_sent.done()) pending_.pop_front();
  pending_.push_back({header_of(message), message.values.to(cpu_device()), {}, {}});
  Pending& pending = pending_.back();
  const CallOptions call{.purpose = {tag == kOn ? "activation" : "activation's gradient"}};
  pending.header_sent = group_->send_async(pending.header.data(), kHeader, DType::kInt64, to, tag, call);
  pending.values_sent =
      group_->send_async(pending.values.buffer().data(), static_cast<std::size_t>(pending.values.count()),
                         pending.values.dtype(), to, tag, call);
  sent_ += pending.values.bytes();
}

Activation RankLinks::receive(int from, int tag, Device& device) {
  const CallOptions call{.purpose = {tag == kOn ? "activation" : "activation's gradient"}};
  std::array<std::int64_t, kHeader> header{};
  group_->recv(header.data(), kHeader, DType::kInt64, from, tag, call);
  const std::vector<std::int64_t> extents(header.begin() + 6, header.begin() + 6 + header[5]);
  const Tensor values = Tensor::empty(Shape(extents), static_cast<DType>(header[0]), cpu_device());
  group_->recv(values.buffer().data(), static_cast<std::size_t>(values.count()), values.dtype(), from, tag, call);
  received_ += values.bytes();
  return {values.to(device),
          {static_cast<std::uint64_t>(header[2]), static_cast<std::uint64_t>(header[3]),
           static_cast<std::uint64_t>(header[4])},
          header[1] != 0};
}

void RankLinks::finish_sends() {
  for (Pending& pending : pending_) {
    pending.header_sent.wait();
    pending.values_sent.wait();
  }
  pending_.clear();
}

}  // namespace lockstep::train
