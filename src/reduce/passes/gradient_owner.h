// The wrapper's side of a pass: its parameters, by the reducer's index.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

class GradientOwner {
 public:
  virtual ~GradientOwner() = default;
  virtual std::size_t count() const = 0;
  virtual const std::string& name(std::size_t parameter) const = 0;
  virtual bool requires_grad(std::size_t parameter) const = 0;  // false for a frozen one
  // The parameter's slot holds the average of the ranks that have a gradient of it, and becomes its gradient.
  virtual void take_average(std::size_t parameter) = 0;
};

}  // namespace lockstep
