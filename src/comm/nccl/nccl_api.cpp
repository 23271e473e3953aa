#include "src/comm/nccl/nccl_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::nccl {

Api load_api(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error("NCCL cannot be loaded: {}; install it (libnccl2), name it in {}, or train on the CPU with {}=cpu",
                dlerror(), env::kNcclLibrary, env::kDevice);
  Api api;
  std::string missing;
#define LOCKSTEP_NCCL_LOOK_UP(function)                                              \
  api.function = reinterpret_cast<decltype(&::function)>(dlsym(library, #function)); \
  if (api.function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(#function);
  LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_NCCL_LOOK_UP)
#undef LOCKSTEP_NCCL_LOOK_UP
  if (!missing.empty()) throw Error("{} is not NCCL, or is older than 2.19: it lacks {}", file, missing);
  if (const ncclResult_t result = api.ncclGetVersion(&api.version); result != ncclSuccess)
    throw_nccl_error(api, result, "ncclGetVersion", nullptr);
  return api;
}

const Api& api() {
  static const Api kApi = load_api(env::text(env::kNcclLibrary).value_or("libnccl.so.2"));
  return kApi;
}

void throw_nccl_error(const Api& api, ncclResult_t result, const char* call, ncclComm_t communicator) {
  const char* const last = api.ncclGetLastError(communicator);
  const std::string detail = last != nullptr && last[0] != '\0' ? std::string(": ") + last : "";
  throw NcclError(result, fmt::format("NCCL: {} failed: {}{} (NCCL_DEBUG=WARN says more)", call,
                                      api.ncclGetErrorString(result), detail));
}

}  // namespace lockstep::nccl
