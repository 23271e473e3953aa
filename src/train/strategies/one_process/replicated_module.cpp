// DataParallel, the module.
//
//     device 0: the module itself   ---- weights ---->   device 1: a copy
//          |  ---- second part of the inputs ---->            |
//     forward                                            forward
//          |  <---- outputs ----------------------            |
//     the caller's loss and its gradient
//          |  ---- gradient of the outputs ------>            |
//     backward                                           backward
//          |  <---- gradients --------------------            |
//     adds them to the module's
//
// The copy of device 0 shares the module's memory. On the tape of the caller, each output is a node that keeps its
// gradient, and all outputs depend on one hub, whose inputs are the parameters and the inputs; the hub's backward runs
// that of all copies, each on the thread of its device.
#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/nn/added_losses.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/data_parallel.h"
#include "src/autograd/engine/device_threads.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/one_process/copied_tensors.h"
#include "src/train/strategies/one_process/gathered_outputs.h"
#include "src/train/strategies/strategy_options.h"

namespace lockstep::train {

class DataParallel::Impl {
 public:
  Impl(nn::Module& module, std::vector<Device*> devices, const MakeModule& make)
      : module_(module), devices_(std::move(devices)), threads_(static_cast<int>(devices_.size())) {
    const RandomState random = random_state();  // copies draw weights that are not used
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      copies_.push_back(make());
      if (!copies_.back()) throw InvalidArgument("{}: the function that makes a copy returned null", kDataParallel);
      check_copy(*copies_.back());
      copies_.back()->to(*devices_[i]);
      states_.emplace_back(copies_.back()->named_parameters(), copies_.back()->named_buffers());
    }
    set_random_state(random);
  }

  nn::Module& module() const { return module_; }
  const std::vector<Device*>& devices() const { return devices_; }

  Tensors forward(const std::shared_ptr<Impl>& self, const Tensors& inputs) {
    const auto all = std::make_shared<Computation>();
    all->rows = cut_rows(rows_of(inputs), devices_.size());
    follow_module(all->rows.size());
    compute(*all, inputs);
    return gather(self, all, inputs);
  }

  // Gradients of the parameters that are inputs of the hub, then of the inputs; undefined where nothing arrived.
  std::vector<Tensors> backward(Computation& all, const std::vector<std::size_t>& parameters,
                                const std::vector<std::size_t>& inputs) {
    std::vector<Tensors> gradients(all.rows.size());
    threads_.run([&](int number) {
      const auto copy = static_cast<std::size_t>(number);
      if (copy >= all.rows.size()) return;
      gradients[copy] = backward_of(all, copy, parameters, inputs);
      devices_[copy]->default_stream().synchronize();  // the first device reads them
    });
    for (GatheredOutput& output : all.outputs) output.gradient = {};
    return gradients;
  }

 private:
  void check_copy(const nn::Module& copy) const {
    const auto text_of = [](const nn::Module& module) {
      std::ostringstream text;
      text << module;
      for (const NamedTensor& each : module.state_dict()) text << each.name << each.tensor.shape().text() << '\n';
      return text.str();
    };
    if (text_of(copy) == text_of(module_)) return;
    throw InvalidArgument(
        "{}: the function that makes a copy built\n{}\nbut the module is\n{}\nPyTorch copies the object; here the "
        "function has to build the same layers: DataParallel(module, devices, [] {{ ... }})",
        kDataParallel, text_of(copy), text_of(module_));
  }

  std::int64_t rows_of(const Tensors& inputs) const {
    std::int64_t rows = -1;
    for (const Tensor& input : inputs) {
      if (!input.defined() || input.shape().dims() == 0 || input.shape()[0] == 0)
        throw InvalidArgument("{}: an input has no rows: every input needs the batch as its first dimension",
                              kDataParallel);
      if (rows >= 0 && input.shape()[0] != rows)
        throw InvalidArgument("{}: the inputs have {} and {} rows; the counts must match", kDataParallel, rows,
                              input.shape()[0]);
      rows = input.shape()[0];
    }
    if (rows < 0) throw InvalidArgument("{}: called without inputs", kDataParallel);
    return rows;
  }

  // Weights, buffers, modes and frozen parameters of the module, for the copies that compute.
  void follow_module(std::size_t copies) {
    const std::vector<NamedTensor> parameters = module_.named_parameters(), buffers = module_.named_buffers();
    for (std::size_t i = 0; i < copies; ++i) {
      copy_modes(module_, *copies_[i]);
      take_values(*devices_.front(), parameters, states_[0].parameters, states_[i].parameters);
      take_values(*devices_.front(), buffers, states_[0].buffers, states_[i].buffers);
      for (std::size_t p = 0; p < parameters.size(); ++p)
        require_grad(states_[i].parameters.tensors[p].tensor, requires_grad(parameters[p].tensor));
    }
  }

  void compute(Computation& all, const Tensors& inputs) {
    const SampleNumbers numbers = sample_numbers();
    const bool records = !NoGrad::active();
    std::vector<Tensors> outputs(all.rows.size());
    std::vector<std::vector<NamedTensor>> added(all.rows.size());
    std::vector<std::uint64_t> before;  // versions of copy 0's buffers, which are the module's memory
    for (const NamedTensor& buffer : states_[0].buffers.tensors) before.push_back(buffer.tensor.version());
    all.inputs.resize(all.rows.size());
    threads_.run([&](int number) {
      const auto copy = static_cast<std::size_t>(number);
      if (copy >= all.rows.size()) return;
      set_sample_numbers(numbers.from_row(all.rows[copy].begin));
      for (const Tensor& input : inputs) {
        Tensor part = detach(view_of_rows(input, all.rows[copy]).to(*devices_[copy]));
        if (records && requires_grad(input)) require_grad(part);
        all.inputs[copy].push_back(std::move(part));
      }
      const nn::AddedLosses losses;
      std::optional<NoGrad> not_recorded;
      if (!records) not_recorded.emplace();
      outputs[copy] = (*copies_[copy])(all.inputs[copy]);
      added[copy] = losses.all();
      devices_[copy]->default_stream().synchronize();
    });
    const std::vector<NamedTensor> buffers = module_.named_buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (states_[0].buffers.tensors[i].tensor.version() != before[i]) buffers[i].tensor.mark_changed();
    arrange(all, outputs, added);
  }

  Tensors gather(const std::shared_ptr<Impl>& self, const std::shared_ptr<Computation>& all, const Tensors& inputs);
  Tensors backward_of(const Computation& all, std::size_t copy, const std::vector<std::size_t>& parameters,
                      const std::vector<std::size_t>& inputs) const;

  nn::Module& module_;
  const std::vector<Device*> devices_;
  std::vector<std::unique_ptr<nn::Module>> copies_;  // by device; the first shares the module's memory
  std::vector<CopiedState> states_;                  // the copies' tensors
  DeviceThreads threads_;
};

Tensors DataParallel::Impl::gather(const std::shared_ptr<Impl>& self, const std::shared_ptr<Computation>& all,
                                   const Tensors& inputs) {
  std::vector<Tensor> differentiated;
  std::vector<std::size_t> parameters, wanted_inputs;
  const std::vector<Tensor> own = module_.parameters();
  for (std::size_t p = 0; p < own.size(); ++p)
    if (requires_grad(own[p])) parameters.push_back(p), differentiated.push_back(own[p]);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (requires_grad(inputs[i])) wanted_inputs.push_back(i), differentiated.push_back(inputs[i]);
  const Tensor hub = Tensor::zeros({1}, DType::kFloat32, *devices_.front());
  record<HubNode>(
      hub, differentiated,
      [self, all, parameters, wanted_inputs] { return self->backward(*all, parameters, wanted_inputs); },
      parameters.size());
  Tensors results;
  for (std::size_t i = 0; i < all->outputs.size(); ++i) {
    const GatheredOutput& output = all->outputs[i];
    const Tensor result = join(*all, output, *devices_.front());
    if (std::any_of(output.parts.begin(), output.parts.end(), [](const Tensor& part) { return requires_grad(part); }))
      record<GatheredOutputNode>(result, {hub}, all, i);
    if (output.how == GatheredOutput::How::kWeightedMean)
      nn::add_loss(result, output.name);
    else
      results.push_back(result);
  }
  return results;
}

Tensors DataParallel::Impl::backward_of(const Computation& all, std::size_t copy,
                                        const std::vector<std::size_t>& parameters,
                                        const std::vector<std::size_t>& inputs) const {
  Tensors roots, gradients_of_roots, leaves;
  for (const GatheredOutput& output : all.outputs) {
    if (!output.gradient.defined() || !requires_grad(output.parts[copy])) continue;
    roots.push_back(output.parts[copy]);
    gradients_of_roots.push_back(gradient_of_part(all, output, copy));
  }
  for (const std::size_t parameter : parameters) leaves.push_back(states_[copy].parameters.tensors[parameter].tensor);
  for (const std::size_t input : inputs) leaves.push_back(all.inputs[copy][input]);
  if (roots.empty()) return Tensors(leaves.size());
  // The hub frees the copies' tapes when the caller's is freed.
  return gradients(roots, leaves, {.gradients = gradients_of_roots, .retain_graph = true, .allow_unused = true});
}

namespace {

std::vector<Device*> checked_devices(const nn::Module& module, const std::vector<Device*>& given) {
  check_is_no_rank(kDataParallel, "this module");
  std::vector<Device*> devices = given.empty() ? default_devices() : given;
  check_devices(kDataParallel, devices);
  for (const NamedTensor& each : module.state_dict()) check_is_on(*devices.front(), each);
  return devices;
}

}  // namespace

DataParallel::DataParallel(nn::Module& module, const std::vector<Device*>& devices, const MakeModule& make) {
  if (!make) throw InvalidArgument("{}: the function that makes a copy of the module is empty", kDataParallel);
  impl_ = std::make_shared<Impl>(module, checked_devices(module, devices), make);
  add("module", module);
}

DataParallel::~DataParallel() = default;

Tensors DataParallel::forward_all(const Tensors& inputs) { return impl_->forward(impl_, inputs); }
nn::Module& DataParallel::module() const { return impl_->module(); }
const std::vector<Device*>& DataParallel::devices() const { return impl_->devices(); }

}  // namespace lockstep::train
