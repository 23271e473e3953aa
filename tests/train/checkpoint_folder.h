// A folder for checkpoints that a test may damage or forge.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "src/train/checkpoint/folder/folder_lock.h"
#include "src/train/files/durable_file.h"

namespace lockstep::testing {

namespace fs = std::filesystem;

// The text of the FileError that the call throws.
inline std::string file_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const FileError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "lockstep-checkpoint-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_; }
  std::vector<std::string> names() const {  // without the lock
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_))
      if (const std::string name = entry.path().filename().string(); name != train::FolderLock::kFile)
        names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

// Replaces a file's text.
inline train::WrittenFile overwrite(const std::string& path, const std::string& text) {
  fs::remove(path);
  return train::write_durably(path, text);
}

// Makes the manifest fit the files, and `latest` the manifest.
inline void put_right(const Folder& folder, const std::string& written, nlohmann::json manifest) {
  for (auto& [name, entry] : manifest["files"].items())
    if (const std::string path = written + "/" + name; fs::exists(path)) {
      const train::ReadFile file = train::read_file(path);
      entry = {{"bytes", file.data.size()}, {"sha256", file.sha256}};
    }
  const train::WrittenFile file = overwrite(written + "/manifest.json", manifest.dump());
  overwrite(folder.path() + "/latest", fs::path(written).filename().string() + " " + file.sha256 + "\n");
}

inline nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(std::ifstream(path)); }

// Changes the state and the manifest of a checkpoint, and updates all checksums.
inline void forge(const Folder& folder, const std::string& written,
                  const std::function<void(nlohmann::json& state, nlohmann::json& files)>& change) {
  nlohmann::json state = read_json(written + "/state.json"), manifest = read_json(written + "/manifest.json");
  change(state, manifest["files"]);
  overwrite(written + "/state.json", state.dump());
  put_right(folder, written, manifest);
}

// Changes the text of the weights' file, including its binary part.
inline void forge_model(const Folder& folder, const std::string& written,
                        const std::function<void(std::string& text)>& change) {
  const std::string path = written + "/model.safetensors";
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  change(text);
  overwrite(path, text);
  put_right(folder, written, read_json(written + "/manifest.json"));
}

}  // namespace lockstep::testing
