// One function for each collective of a transport, and the choice between them.
#pragma once

#include "lockstep/comm/operation.h"

namespace lockstep {

class Collectives {
 public:
  virtual ~Collectives() = default;

 protected:
  // Runs the collective of the operation's kind. `backend` is for the message of a broken invariant: the transport
  // makes memory in allocate() and never here.
  void run_collective(const Operation& operation, const char* backend);

 private:
  virtual void barrier(const Operation& operation) = 0;
  virtual void broadcast(const Operation& operation) = 0;
  virtual void all_reduce(const Operation& operation) = 0;
  virtual void all_gather(const Operation& operation) = 0;
  virtual void reduce_to_root(const Operation& operation) = 0;
  virtual void gather(const Operation& operation) = 0;
  virtual void scatter(const Operation& operation) = 0;
  virtual void reduce_scatter(const Operation& operation) = 0;
  virtual void all_to_all(const Operation& operation) = 0;
  virtual void all_gather_v(const Operation& operation) = 0;
  virtual void all_to_all_v(const Operation& operation) = 0;
};

}  // namespace lockstep
