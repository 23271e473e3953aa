// Code that the training examples share: flags, the folder of the data, the score of a classifier, the file of figures.
// Your own program needs none of it: the training itself is in the examples.
#pragma once

#include <cstdint>
#include <cxxopts.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/nn/module.h"
#include "lockstep/train/progress.h"

namespace lockstep::examples {

// The flags of every training example. Their values before read_flags() are the program's defaults.
struct TrainingFlags {
  std::string data = {}, json_file = {};
  std::int64_t epochs = 1, steps = 0, batch = 64, log_every = 20;
  float lr = 0;
  std::uint64_t seed = 1;
  std::string dtype = "float32";     // only of programs that call add_dtype()
  std::set<std::string> given = {};  // names of the flags on the command line
};

struct Program {
  const char* name;
  const char* purpose;  // for --help
  const char* data;     // what --data must hold
};

// Adds a program's own flags.
using AddFlags = std::function<void(cxxopts::OptionAdder& add)>;

// Reads the command line. Returns false after printing the text of --help. Throws InvalidArgument, which names the
// flag, for an unknown flag, and for a value that cannot be read or is out of range.
bool read_flags(const Program& program, int argc, char** argv, TrainingFlags& flags, const AddFlags& add_flags = {});

// Adds --dtype, for ls::autocast_type().
void add_dtype(cxxopts::OptionAdder& add, TrainingFlags& flags);

// For programs with other flags: reads the command line by these options, which include --help. Returns nullopt after
// printing the text of --help. Throws as read_flags() does.
std::optional<cxxopts::ParseResult> parse_flags(cxxopts::Options& options, int argc, char** argv);

// The samples that a rank takes in a step: its share of the batch. Throws InvalidArgument if the ranks do not divide
// the batch, or it has more samples than the set.
std::int64_t batch_of_rank(const TrainingFlags& flags, int ranks, std::int64_t set_size);

// The number of steps by the flags.
struct Steps {
  std::int64_t per_epoch;
  std::int64_t total;  // of all epochs: the learning rate is planned for these
  std::int64_t last;   // --steps ends the run earlier
};
Steps steps_of(const TrainingFlags& flags, std::int64_t set_size);
// Rank 0 shows progress on the terminal or in a log, in `samples` per second.
train::ProgressOptions progress_of(const TrainingFlags& flags, const Steps& steps, const ProcessGroup& group,
                                   const char* samples = "images");

// Returns the folder that holds one of `files`: --data or its folder `set`; without --data, the same of LOCKSTEP_DATA.
// Throws FileError, which says how to get the data, if there is no such folder.
std::string find_data(const TrainingFlags& flags, const std::string& set, const std::vector<std::string>& files);
// The same for CIFAR-10, also in the folders that data::find_cifar10() knows.
std::string find_cifar10(const TrainingFlags& flags);

// Looks at the losses of several steps at once, because reading one waits for the device: a NaN of any of them is one
// in their sum, also if a LossScaler skipped its step. Ends the run as train::check_finite() does.
class LossCheck {
 public:
  LossCheck(std::shared_ptr<ProcessGroup> group, std::int64_t every) : group_(std::move(group)), every_(every) {}
  // After the step: looks every so many steps, and in the last one.
  void step(std::int64_t step, const Tensor& loss, bool is_last);

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::int64_t every_, first_ = 0;
  Tensor sum_;
};

struct Score {
  double accuracy = 0, loss = 0;  // accuracy: a fraction
  std::int64_t samples = 0;
  // "accuracy 0.9213 on 10000 test samples, loss 0.231"; `part`: of the data set
  std::string text(const char* part = "test") const;
};
// The score of a classifier in evaluation mode on the entire set, each sample on one rank. Collective.
Score score_of(nn::Module& net, const data::Dataset& test, Device& device);

// Throws FileError if rank 0 cannot write --json-file, before the training instead of after it. Does nothing on other
// ranks and without --json-file.
void check_json_file(const TrainingFlags& flags, const ProcessGroup& group);
// Rank 0 writes the figures to a temporary file next to the target and renames it, so that no reader sees an incomplete
// file; a target that is not a regular file (/dev/stdout) is written directly. Throws FileError with the reason.
void write_json_file(const TrainingFlags& flags, const ProcessGroup& group, const nlohmann::json& figures);

}  // namespace lockstep::examples
