#include <ostream>
#include <string>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

namespace {

// `indent`: prefix of all lines after the module's first.
void print(std::ostream& out, const Module& module, const std::string& indent) {
  out << module.kind() << "(" << module.extra_repr();
  if (module.children().empty()) {
    out << ")";
    return;
  }
  for (const auto& [name, child] : module.children()) {
    out << "\n" << indent << "  (" << name << "): ";
    print(out, *child, indent + "  ");
  }
  out << "\n" << indent << ")";
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Module& module) {
  print(out, module, "");
  return out;
}

}  // namespace lockstep::nn
