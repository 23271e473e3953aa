// The outputs that DataParallel gathers from its copies, and the nodes that bring gradients back to the copies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/data_parallel.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

inline constexpr const char* kDataParallel = DataParallel::kKind;

// The rows of each copy that computes, as torch.chunk cuts them.
std::vector<PartRows> cut_rows(std::int64_t rows, std::size_t devices);

// An output of the copies, or a loss that their modules added.
struct GatheredOutput {
  enum class How { kRows, kScalars, kWeightedMean };
  How how = How::kRows;
  std::string name;  // of an added loss
  Tensors parts;     // by copy, with their history
  Tensor gradient;   // of the result, during a backward pass
};

// One forward.
struct Computation {
  std::vector<PartRows> rows;   // by copy
  std::vector<Tensors> inputs;  // by copy: leaves
  std::vector<GatheredOutput> outputs;

  float weight(std::size_t copy) const {  // its share of the rows
    return static_cast<float>(rows[copy].count) / static_cast<float>(rows.back().begin + rows.back().count);
  }
};

// Sets .outputs to the outputs and then the added losses, both given by copy. Throws InvalidArgument if the copies have
// different numbers of them.
void arrange(Computation& all, const std::vector<Tensors>& outputs, const std::vector<std::vector<NamedTensor>>& added);
// The result on `device`, without history.
Tensor join(const Computation& all, const GatheredOutput& output, Device& device);
// The gradient of one copy's part of an output, on the device of the part.
Tensor gradient_of_part(const Computation& all, const GatheredOutput& output, std::size_t copy);

// An output. Its input is the hub; it keeps the gradient of its result.
class GatheredOutputNode : public Node {
 public:
  GatheredOutputNode(std::vector<Tensor> hub, std::shared_ptr<Computation> computation, std::size_t output)
      : Node(std::move(hub)), computation_(std::move(computation)), output_(output) {}
  const char* name() const override { return "gather_outputs"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override;

 private:
  void release_members() override { computation_ = nullptr; }

  std::shared_ptr<Computation> computation_;
  const std::size_t output_;
};

// The hub: its result is a number without meaning, on which all outputs depend. Its inputs are the parameters that are
// trained, of which there are `parameters`, and then the inputs of the forward that want a gradient.
class HubNode : public Node {
 public:
  // Returns the gradients of the node's inputs, by copy; undefined where nothing arrived.
  using RunBackward = std::function<std::vector<Tensors>()>;

  HubNode(const std::vector<Tensor>& inputs, RunBackward run_backward, std::size_t parameters)
      : Node(inputs, inputs), run_backward_(std::move(run_backward)), parameters_(parameters) {}
  const char* name() const override { return kDataParallel; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override;

 private:
  void release_members() override { run_backward_ = nullptr; }

  RunBackward run_backward_;
  const std::size_t parameters_;
};

}  // namespace lockstep::train
