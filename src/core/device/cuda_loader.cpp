#include "src/core/device/cuda_loader.h"

#include <dlfcn.h>

#include <system_error>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/device/gpu.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

cuda::Library* open(const fs::path& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error("{}", explain_load_failure(file.string(), dlerror()));
  const auto entry = reinterpret_cast<cuda::LibraryEntry>(dlsym(handle, cuda::kLibraryEntry));
  cuda::Library* const library = entry == nullptr ? nullptr : entry(cuda::kLibraryVersion);
  if (library == nullptr)
    throw Error("{} {}: install program and library from one build", file.string(),
                entry == nullptr ? "is not a CUDA part of Lockstep" : "belongs to another version of Lockstep");
  return library;
}

cuda::Library* find() {
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  const std::string set = env::text(env::kCudaLibrary).value_or("");
  for (const fs::path& place : cuda_library_places(set, program)) {
    if (!set.empty() || (place.has_parent_path() && fs::exists(place, failure))) return open(place);
    if (place.has_parent_path()) continue;
    if (void* const handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) return open(place);
    const std::string why = dlerror();
    if (why.rfind(place.string(), 0) != 0)
      throw Error("{}", explain_load_failure(place.string(), why));  // the file exists
  }
  throw cuda::NoGpu(
      "this installation has no CUDA part: {} is neither next to the program nor in ../lib, ../src/cuda or on the "
      "library path (build with "
      "-Dcuda=enabled, or name the file in {})",
      cuda::kLibraryFile, env::kCudaLibrary);
}

struct Vendor {
  const char* file;
  const char* product;
  const char* remedy;
};
constexpr Vendor kVendors[] = {
    {"libcudnn", "cuDNN", "libcudnn9-cuda-<major version of CUDA>"},
    {"libcublas", "cuBLAS", "libcublas-<version of CUDA>"},
    {"libnvrtc", "NVRTC", "cuda-nvrtc-<version of CUDA>"},
};

}  // namespace

// Parses the loader's message "FILE: cannot open shared object file: No such file or directory", where FILE is missing.
std::string explain_load_failure(const std::string& library, const std::string& error) {
  const std::string missing = error.substr(0, error.find(':'));
  const bool absent = error.find("cannot open shared object file") != std::string::npos;
  if (absent && missing == library)
    return fmt::format("the CUDA part cannot be loaded: the file {} does not exist", library);
  for (const Vendor& vendor : kVendors) {
    if (!absent || missing.rfind(vendor.file, 0) != 0) continue;
    return fmt::format(
        "the CUDA part cannot be loaded: {} ({}) was not found: install it (NVIDIA's package {}), or put its folder "
        "into LD_LIBRARY_PATH",
        vendor.product, missing, vendor.remedy);
  }
  return fmt::format(
      "the CUDA part cannot be loaded: {}: are the CUDA libraries installed, in the versions that it was built with?",
      error);
}

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
  static cuda::Library* const kLibrary = find();  // after a failure the next call tries again
  return *kLibrary;
}

}  // namespace lockstep
