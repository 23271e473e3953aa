// NCCL's functions, loaded at run time: a program that uses no GPU needs no NCCL, and tests can replace the library.
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

  int version = 0;  // e.g. 22809 for 2.28.9
};

// Loads `file` ("libnccl.so.2", or the value of LOCKSTEP_NCCL_LIBRARY). Throws Error if it does not exist or is too old
// (with the missing functions).
Api load_api(const std::string& file);
// The library of this process, loaded in the first call.
const Api& api();

// An error that NCCL reports.
class NcclError : public Error {
 public:
  NcclError(ncclResult_t result, const std::string& text) : Error("{}", text), result_(result) {}
  // When a peer ends, its connections break; invalid arguments and CUDA errors are caused by this rank.
  bool may_be_a_peers_end() const {
    return result_ == ncclRemoteError || result_ == ncclSystemError || result_ == ncclInternalError;
  }

 private:
  ncclResult_t result_;
};

// Throws NcclError with the call, NCCL's reason, and what to do. `communicator` may be null.
[[noreturn]] void throw_nccl_error(const Api& api, ncclResult_t result, const char* call, ncclComm_t communicator);

}  // namespace lockstep::nccl
