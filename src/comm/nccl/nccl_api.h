// NCCL's functions, found at run time: a program that uses no GPU needs no NCCL, and tests put a library of their own
// in its place.
#pragma once

#include <nccl.h>

#include <string>

#include "lockstep/core/error.h"

namespace lockstep::nccl {

struct Api {
#define LOCKSTEP_NCCL_FUNCTIONS(apply)                                                                              \
  apply(ncclGetVersion) apply(ncclGetUniqueId) apply(ncclCommInitRankConfig) apply(ncclCommGetAsyncError)           \
      apply(ncclCommFinalize) apply(ncclCommDestroy) apply(ncclCommAbort) apply(ncclMemAlloc) apply(ncclMemFree)    \
          apply(ncclCommRegister) apply(ncclCommDeregister) apply(ncclRedOpCreatePreMulSum) apply(ncclRedOpDestroy) \
              apply(ncclAllReduce) apply(ncclBroadcast) apply(ncclReduce) apply(ncclReduceScatter)                  \
                  apply(ncclAllGather) apply(ncclSend) apply(ncclRecv) apply(ncclGroupStart) apply(ncclGroupEnd)    \
                      apply(ncclGetErrorString) apply(ncclGetLastError)
#define LOCKSTEP_NCCL_POINTER(function) decltype(&::function) function = nullptr;
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_NCCL_POINTER)
#undef LOCKSTEP_NCCL_POINTER

  int version = 0;  // 22809 is 2.28.9
};

// Loads `file` ("libnccl.so.2", or what LOCKSTEP_NCCL_LIBRARY names). Throws Error: not there, too old (what it lacks).
Api load_api(const std::string& file);
// This process's, loaded at the first call.
const Api& api();

// An error that NCCL itself reports.
class NcclError : public Error {
 public:
  NcclError(ncclResult_t result, const std::string& text) : Error("{}", text), result_(result) {}
  // A peer's end breaks connections; wrong arguments and CUDA's errors are this rank's own.
  bool may_be_a_peers_end() const {
    return result_ == ncclRemoteError || result_ == ncclSystemError || result_ == ncclInternalError;
  }

 private:
  ncclResult_t result_;
};

// Throws NcclError: the call, NCCL's reason, and what to do. `communicator` may be null.
[[noreturn]] void throw_nccl_error(const Api& api, ncclResult_t result, const char* call, ncclComm_t communicator);

}  // namespace lockstep::nccl
