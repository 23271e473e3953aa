#include "lockstep/core/kernel_families.h"

#include "lockstep/core/error.h"

namespace lockstep {

const void* KernelFamilies::find(const char* family) const {
  const auto found = families_.find(family);
  LOCKSTEP_CHECK(found != families_.end(), "the device's kernel table has no family '{}'", family);
  return found->second;
}

}  // namespace lockstep
