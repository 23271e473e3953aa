#include "src/comm/mpi/library/mpi_api.h"

#include <dlfcn.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/mpi/mpi_folder.h"

namespace lockstep::mpi {

namespace {

constexpr const char* kLibrary = "libmpi.so.40";  // of Open MPI 3, 4 and 5

// The loader's search path, or the library's folder when this was built.
std::string find_library() {
  const std::string there = std::string(LOCKSTEP_MPI_FOLDER) + "/" + kLibrary;
  return dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL) == nullptr && ::access(there.c_str(), F_OK) == 0 ? there : kLibrary;
}

}  // namespace

Api load_api(const std::string& file) {
  Api api;
  // Open MPI's own plugins look for its symbols in the global namespace.
  api.library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (api.library == nullptr)
    throw InvalidArgument(
        "MPI cannot be loaded: {}; install Open MPI (libopenmpi3), put its folder into LD_LIBRARY_PATH, or use {}=host",
        dlerror(), env::kBackend);
  std::string missing;
#define LOCKSTEP_MPI_LOOK_UP(function)                                                   \
  api.function = reinterpret_cast<decltype(&::function)>(dlsym(api.library, #function)); \
  if (api.function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(#function);
  LOCKSTEP_MPI_FUNCTIONS(LOCKSTEP_MPI_LOOK_UP)
#undef LOCKSTEP_MPI_LOOK_UP
  if (!missing.empty()) throw InvalidArgument("{} is not MPI, or is older than MPI 3.0: it lacks {}", file, missing);
  return api;
}

const Api& api() {
  static const Api kApi = load_api(find_library());
  return kApi;
}

void* object(const char* name) {
  void* const found = dlsym(api().library, name);
  if (found == nullptr) throw InvalidArgument("{} is not Open MPI: it lacks {}", kLibrary, name);
  return found;
}

}  // namespace lockstep::mpi
