// Independent branches of a model, which compute at the same time on their devices.
//
//   const Tensors y = parallel_apply({{[&] { return left(to_device(x, first)); }, first},
//                                     {[&] { return right(to_device(x, second)); }, second}});
//   Tensor out = head(concat({y[0], to_device(y[1], first)}, 1));
//
// Each device has a thread, which computes the branches of its device, one after the other; so does backward. The bits
// are those of the same branches on one device: gradients of a tensor that several branches read are added in the order
// in which one thread would add them. The layer nn::Branches (nn/branches.h) is made of this.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct Branch {
  std::function<Tensor()> function;  // called once, on the thread of the device
  Device& device;                    // where it computes; the function moves its inputs there
};

// Returns the result of each branch. The caller's thread waits for all. Branches must not change what others read, and
// must not make collective calls, whose order would be left to chance. They draw random numbers from streams of their
// own, which follow from the caller's RandomState and the number of the branch; sample numbers, AutoCast and NoGrad are
// the caller's.
//
// In backward all branches whose results have a gradient run at the same time as soon as all those gradients are
// complete; the parameters of a branch whose result nothing used have no gradient. Hooks of parameters are called on
// the thread that calls backward(), while branches compute, in an order that does not depend on time: so branches can
// be part of a module in DistributedDataParallel.
//
// Throws InvalidArgument if there is no branch, if a function is empty or returns an undefined tensor; if branches
// throw, the exception of the first of them, after all have ended.
Tensors parallel_apply(const std::vector<Branch>& branches);

}  // namespace lockstep
#pragma GCC visibility pop
