// The layers of the library, and which others each may use.
#pragma once

#include <map>
#include <set>
#include <string>

// core <- tensor <- autograd <- nn, optim, data;  core <- comm <- reduce;  ddp joins the two;  train, launch above.
inline const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {}},
    {"all kernels",
     {"core"}},  // what every device's kernels share: files of kernels/ itself, and the formulas in kernels/updates
    {"kernels", {"core", "all kernels"}},
    {"cuda", {"core", "all kernels"}},  // the CUDA part: one library, whose kernels are in kernels/cuda
    {"tensor", {"core"}},
    {"autograd", {"core", "tensor"}},
    {"nn", {"core", "tensor", "autograd"}},
    {"optim", {"core", "tensor", "autograd"}},
    {"data", {"core", "tensor", "autograd"}},
    {"comm", {"core"}},
    {"reduce", {"core", "comm"}},
    {"ddp", {"core", "comm", "reduce", "tensor", "autograd", "nn", "optim"}},
    {"train", {"core", "comm", "reduce", "tensor", "autograd", "nn", "optim", "data", "ddp"}},
    {"models", {"core", "comm", "reduce", "tensor", "autograd", "nn", "optim", "data", "ddp", "train"}},
    {"launch", {"core", "comm"}},
    {"diagnose", {"core", "comm"}},
    {"torch", {"core", "comm", "reduce", "train"}},  // a library of its own, which has none of our tensors
};
