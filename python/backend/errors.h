// Lockstep's exceptions as those that PyTorch's Python API documents.
#pragma once

#include <exception>
#include <string>

namespace lockstep::torch_backend {

// Calls `body`; an exception of Lockstep leaves it with the same text as one of PyTorch: InvalidArgument as
// RuntimeError, any other as torch.distributed.DistBackendError (a RuntimeError, too).
template <typename Body> auto with_torch_errors(Body&& body);

// The same for an exception that is held. Returns others unchanged.
std::exception_ptr as_torch_error(const std::exception_ptr& error);

// Throws RuntimeError with a text that begins with "lockstep: `call` on rank `rank`: ".
[[noreturn]] void refuse(const char* call, int rank, const std::string& why);

template <typename Body> auto with_torch_errors(Body&& body) {
  try {
    return body();
  } catch (...) {
    std::rethrow_exception(as_torch_error(std::current_exception()));
  }
}

}  // namespace lockstep::torch_backend
