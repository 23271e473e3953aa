#include "src/core/cuda_loader.h"

#include <dlfcn.h>

#include <system_error>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

cuda::Library* open(const fs::path& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw Error("the CUDA part cannot be loaded: {}; are the CUDA libraries (cuBLASLt 13, cuDNN 9) installed and found (LD_LIBRARY_PATH)?",
                dlerror());
  const auto entry = reinterpret_cast<cuda::LibraryEntry>(dlsym(handle, cuda::kLibraryEntry));
  cuda::Library* const library = entry == nullptr ? nullptr : entry(cuda::kLibraryVersion);
  if (library == nullptr)
    throw Error("{} belongs to another version of Lockstep: install program and library from one build", file.string());
  return library;
}

cuda::Library* find() {
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  const std::string set = env::text(env::kCudaLibrary).value_or("");
  std::string looked;
  for (const fs::path& place : cuda_library_places(set, program)) {
    if (!place.has_parent_path() || fs::exists(place, failure)) {
      if (place.has_parent_path()) return open(place);
      if (void* const handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) return open(place);
    }
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  throw Error("the CUDA part of Lockstep is not there (looked for {}): build with -Dcuda=enabled, or name it in {}", looked,
              env::kCudaLibrary);
}

}  // namespace

std::vector<fs::path> cuda_library_places(const std::string& set, const fs::path& program) {
  if (!set.empty()) return {set};
  const fs::path folder = program.parent_path();
  std::vector<fs::path> places;
  for (const char* where : {"", "../lib", "../src/cuda", "../../src/cuda"})
    places.push_back((folder / where / cuda::kLibraryFile).lexically_normal());
  places.emplace_back(cuda::kLibraryFile);
  return places;
}

cuda::Library& cuda_library() {
  static cuda::Library* const kLibrary = find();  // a failure is tried again by the next call
  return *kLibrary;
}

}  // namespace lockstep
