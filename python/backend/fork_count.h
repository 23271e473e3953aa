// Whether this process was forked from the one that made a group: it has the group's connections, but none of its
// threads.
#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep::torch_backend {

// The process that made the object.
class OwnProcess {
 public:
  OwnProcess();
  bool is_this() const;
  std::string refusal() const;  // for an object that is used in a child

 private:
  pid_t process_;
  int forks_;
};

}  // namespace lockstep::torch_backend
