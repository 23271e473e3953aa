// The sources of the tree, for tests that read them.
#pragma once

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>

inline bool is_source(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h" || extension == ".inc" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

// Calls visit(path relative to the root, text) for every source below the folders. Returns how many there are.
template <typename Visit> int visit_sources(std::initializer_list<const char*> folders, Visit&& visit) {
  int files = 0;
  const std::filesystem::path root = LOCKSTEP_SOURCE_ROOT;
  for (const char* folder : folders)
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder))
      if (entry.is_regular_file() && is_source(entry.path())) {
        std::ifstream file(entry.path());
        visit(entry.path().lexically_relative(root).generic_string(),
              std::string(std::istreambuf_iterator<char>(file), {}));
        ++files;
      }
  return files;
}
