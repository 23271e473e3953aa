#include "src/ddp/wrapper/ignored_tensors.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "src/ddp/wrapper/agreed_options.h"

namespace lockstep {

namespace {

struct Living {
  std::mutex mutex;
  std::vector<const std::vector<Tensor>*> all;  // of wrappers that ignore any
};

Living& living() {
  static Living* const kLiving = new Living;  // never destroyed, because a wrapper may be static, too
  return *kLiving;
}

}  // namespace

IgnoredTensors::IgnoredTensors(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) return;
  const std::lock_guard lock(living().mutex);
  living().all.push_back(&tensors_);
}

IgnoredTensors::~IgnoredTensors() {
  if (tensors_.empty()) return;
  const std::lock_guard lock(living().mutex);
  auto& all = living().all;
  all.erase(std::find(all.begin(), all.end(), &tensors_));
}

bool IgnoredTensors::has(const Tensor& tensor) {
  const std::lock_guard lock(living().mutex);
  return std::any_of(living().all.begin(), living().all.end(),
                     [&](const auto* tensors) { return is_among(tensor, *tensors); });
}

}  // namespace lockstep
