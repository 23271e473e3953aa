// What the training examples have in common: flags, the folder of the data, the score of a classifier, the file of figures. A program of
// your own needs none of it: the training itself stands in the examples.
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

// The flags of every training example. What they hold when they are read are the program's defaults.
struct TrainingFlags {
  std::string data = {}, json_file = {};
  std::int64_t epochs = 1, steps = 0, batch = 64, log_every = 20;
  float lr = 0;
  std::uint64_t seed = 1;
  std::string dtype = "float32";     // of programs that take it: add_dtype()
  std::set<std::string> given = {};  // names of the flags on the command line
};

struct Program {
  const char* name;
  const char* purpose;  // for --help
  const char* data;     // what --data must hold
};

// Adds a program's own flags.
using AddFlags = std::function<void(cxxopts::OptionAdder& add)>;

// Reads the command line. False: it asks for --help, which was printed. Throws InvalidArgument, which names the flag, for an unknown one,
// a value that is none, and a value out of range.
bool read_flags(const Program& program, int argc, char** argv, TrainingFlags& flags, const AddFlags& add_flags = {});

// Adds --dtype, for ls::autocast_type().
void add_dtype(cxxopts::OptionAdder& add, TrainingFlags& flags);

// For programs with other flags: the command line by these options, which include --help. Nullopt: it asks for that, which was printed.
// Throws as read_flags() for what the options do not take.
std::optional<cxxopts::ParseResult> parse_flags(cxxopts::Options& options, int argc, char** argv);

// Samples a rank takes in a step: the batch, which all ranks share. InvalidArgument: it cannot be divided, or has more samples than the
// set.
std::int64_t batch_of_rank(const TrainingFlags& flags, int ranks, std::int64_t set_size);

// How many steps the flags ask for, of so many an epoch.
struct Steps {
  std::int64_t per_epoch;
  std::int64_t total;  // of all epochs: what the learning rate is planned for
  std::int64_t last;   // --steps ends earlier, as if the rest were to follow
};
Steps steps_of(const TrainingFlags& flags, std::int64_t set_size);
// Of rank 0, on the terminal or in a log, in `samples` a second.
ProgressOptions progress_of(const TrainingFlags& flags, const Steps& steps, const ProcessGroup& group, const char* samples = "images");

// The folder that holds one of `files`: --data itself or its folder `set`; without --data, LOCKSTEP_DATA likewise. FileError, which says
// how to get the data, when there is none.
std::string find_data(const TrainingFlags& flags, const std::string& set, const std::vector<std::string>& files);

struct Score {
  double accuracy = 0, loss = 0;  // accuracy: a fraction
  std::int64_t samples = 0;
  // "accuracy 0.9213 on 10000 test samples, loss 0.231"; `part`: of the data set
  std::string text(const char* part = "test") const;
};
// Of a classifier in evaluation mode, over the whole set, each sample on one rank. Collective.
Score score_of(nn::Module& net, const data::Dataset& test, Device& device);

// FileError when rank 0 cannot write --json-file: better told before the training. Nothing happens on other ranks and without --json-file.
void check_json_file(const TrainingFlags& flags, const ProcessGroup& group);
// Rank 0 writes the figures: beside the file, and then moves them, so that no reader finds half of them; what is no plain file
// (/dev/stdout) is written as it is. FileError with the reason.
void write_json_file(const TrainingFlags& flags, const ProcessGroup& group, const nlohmann::json& figures);

}  // namespace lockstep::examples
