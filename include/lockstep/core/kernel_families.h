// Kernels for operators of layers above core.
//
// The layer declares a family in a header <family>_kernels.h that includes only core: a struct of function pointers
// with a name, kFamily. Each device includes that header, implements the family, and adds it to its kernel table, from
// which the layer gets it. Core knows the name and the pointer, but not the operators.
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
  // The table stores the pointer, so `kernels` must live as long as the process.
  template <typename Family> void set(const Family& kernels) { families_[Family::kFamily] = &kernels; }
  // The device must have the family (LOCKSTEP_CHECK).
  template <typename Family> const Family& get() const { return *static_cast<const Family*>(find(Family::kFamily)); }

 private:
  const void* find(const char* family) const;

  std::map<std::string_view, const void*> families_;
};

}  // namespace lockstep
#pragma GCC visibility pop
