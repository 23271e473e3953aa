#include "src/train/strategies/one_process/copied_tensors.h"

#include "lockstep/core/error.h"
#include "src/train/strategies/one_process/gathered_outputs.h"

namespace lockstep::train {

void check_is_on(const Device& first, const NamedTensor& each) {
  if (&each.tensor.device() != &first)
    throw InvalidArgument("{}: '{}' is on {}, but the first device is {}: move the module there with .to(device)",
                          kDataParallel, each.name, each.tensor.device().name(), first.name());
}

void take_values(const Device& device, const std::vector<NamedTensor>& from, const CopiedTensors& first,
                 CopiedTensors& to) {
  if (from.size() != to.tensors.size())
    throw InvalidArgument(
        "{}: the module had {} parameters or buffers when it was wrapped and has {} now: wrap it again after a "
        "change",
        kDataParallel, to.tensors.size(), from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    const Tensor &source = from[i].tensor, &copy = to.tensors[i].tensor;
    check_is_on(device, from[i]);
    const auto versions = [&] {
      return CopiedTensors::Versions{source.buffer().data(), source.version(), first.tensors[i].tensor.version(),
                                     copy.version()};
    };
    if (&to == &first) {
      if (copy.buffer().data() != source.buffer().data()) copy.rebind(source.buffer());
    } else if (versions() != to.versions[i]) {
      copy.copy_from(source);
      to.versions[i] = versions();
    }
  }
}

}  // namespace lockstep::train
