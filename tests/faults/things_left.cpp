#include "tests/faults/things_left.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/faults/training_net.h"

namespace lockstep::testing {

namespace {

namespace fs = std::filesystem;

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) names.insert(entry.path().filename().string());
  return names;
}

// "device inode" of the memory that a process maps and that memfd_create made for Lockstep.
std::set<std::string> segments_of(const std::string& pid) {
  std::set<std::string> segments;
  std::ifstream maps("/proc/" + pid + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:lockstep") == std::string::npos) continue;
    std::istringstream words(line);
    std::string range, access, offset, device, inode;
    words >> range >> access >> offset >> device >> inode;
    segments.insert(device + " " + inode);
  }
  return segments;
}

void check_folder(const std::string& folder, bool killed_amid_saving, std::vector<std::string>& left) {
  for (const std::string& name : names_in(folder)) {
    const bool whole = name == "latest" || name == ".lock" || name.rfind("step-", 0) == 0;
    if (!whole && !killed_amid_saving) left.push_back("half a checkpoint: " + folder + "/" + name);
  }
  try {
    load_training(folder);
  } catch (const std::exception& error) {
    left.push_back(std::string("a checkpoint that does not load: ") + error.what());
  }
}

// Files of concurrent tests: those of MPIs (Open MPI 4 and 5, MPICH) come and go, and one test leaves a file for this
// class to find.
bool is_of_another_test(const std::string& name) {
  for (const char* const mpis : {"vader", "sm_segment", "mpich"})
    if (name.starts_with(mpis)) return true;
  return name.starts_with("lockstep-left-") && name != "lockstep-left-" + std::to_string(::getpid());
}

}  // namespace

ThingsLeft::ThingsLeft(std::string checkpoint_folder)
    : folder_(std::move(checkpoint_folder)), shm_before_(names_in("/dev/shm")) {}

bool ThingsLeft::note_memory(const Child& job) {
  for (const pid_t pid : job.alive()) memory_.merge(segments_of(std::to_string(pid)));
  return !memory_.empty();
}

std::vector<std::string> ThingsLeft::after(const std::vector<const Child*>& jobs, bool killed_amid_saving) const {
  std::vector<std::string> left;
  for (const Child* job : jobs)
    if (!job->nothing_left())
      for (const pid_t pid : job->alive()) left.push_back("process " + std::to_string(pid));
  for (const std::string& name : names_in("/proc"))
    if (name.find_first_not_of("0123456789") == std::string::npos)
      for (const std::string& segment : segments_of(name))
        if (memory_.count(segment) > 0) left.push_back("shared memory " + segment + " in process " + name);
  for (const std::string& name : names_in("/dev/shm"))
    if (shm_before_.count(name) == 0 && !is_of_another_test(name)) left.push_back("/dev/shm/" + name);
  if (!folder_.empty()) check_folder(folder_, killed_amid_saving, left);
  return left;
}

}  // namespace lockstep::testing
