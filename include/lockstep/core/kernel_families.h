// Kernels of operators that belong to a layer above core.
//
// The layer declares a family: a struct of function pointers, whose kFamily is its name, in a header <family>_kernels.h
// that includes core alone. Each device includes that header, implements the family, and puts it into its kernel table;
// the layer takes it from there. Core knows the name and the pointer, not the operators.
//
//   struct WarpKernels {
//     static constexpr const char* kFamily = "warp";
//     void (*warp)(const WarpShape&, ..., Stream&);
//   };
//   device.kernels().families.get<WarpKernels>().warp(shape, ..., stream);
#pragma once

#include <map>
#include <string_view>

#pragma GCC visibility push(default)
namespace lockstep {

class KernelFamilies {
 public:
  // The table keeps the pointer: `kernels` lives as long as the process.
  template <typename Family>
  void set(const Family& kernels) {
    families_[Family::kFamily] = &kernels;
  }
  // The device has it: LOCKSTEP_CHECK.
  template <typename Family>
  const Family& get() const {
    return *static_cast<const Family*>(find(Family::kFamily));
  }

 private:
  const void* find(const char* family) const;

  std::map<std::string_view, const void*> families_;
};

}  // namespace lockstep
#pragma GCC visibility pop
