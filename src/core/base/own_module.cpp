#include "src/core/base/own_module.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <filesystem>
#include <vector>

namespace lockstep {

namespace {

namespace fs = std::filesystem;

// ASan cannot load a library before the program's.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kLoadFlags = RTLD_NOW | RTLD_LOCAL;
#elif defined(__has_feature)
constexpr int kLoadFlags = RTLD_NOW | RTLD_LOCAL | (__has_feature(address_sanitizer) ? 0 : RTLD_DEEPBIND);
#else
constexpr int kLoadFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

// A module of another user than the program's could have been put there by anyone.
bool has_owner_of_program(const fs::path& file) {
  struct stat of_file {
  }, of_program{};
  return ::stat(file.c_str(), &of_file) == 0 && ::stat("/proc/self/exe", &of_program) == 0 &&
         (of_file.st_uid == of_program.st_uid || of_file.st_uid == 0);
}

// In an installation, next to the shared library or on the library path; in a build folder, where it is built.
std::vector<fs::path> module_places(const char* built_in) {
  std::vector<fs::path> places;
  Dl_info here{};
  if (::dladdr(reinterpret_cast<void*>(&module_places), &here) != 0 && here.dli_fname != nullptr)
    places.push_back(fs::path(here.dli_fname).parent_path());
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure).parent_path();
  for (const fs::path& where :
       {fs::path(), fs::path("../lib"), fs::path("..") / built_in, fs::path("../..") / built_in})
    places.push_back((program / where).lexically_normal());
  return places;
}

}  // namespace

OwnModule load_own_module(const char* name, const char* built_in) {
  OwnModule module;
  for (const fs::path& folder : module_places(built_in)) {
    std::error_code failure;
    const fs::path file = folder / name;
    if (folder.empty() || !fs::exists(file, failure) || !has_owner_of_program(file)) continue;
    module.file = file.string();
    module.handle = ::dlopen(file.c_str(), kLoadFlags);
    break;
  }
  if (module.file.empty()) module.handle = ::dlopen(name, kLoadFlags);
  if (module.handle == nullptr) module.error = ::dlerror();
  return module;
}

}  // namespace lockstep
