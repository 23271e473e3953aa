// The CIFAR-10 tutorial network, trained data-parallel. Start it with any number of ranks that divides the batch:
//
//   lockrun -n 2 build/examples/cifar10 --data DIR
//
// prints progress, then something like
//
//   accuracy 0.7016 on 10000 held-out images, loss 0.893
//
// Without data it trains on a generated set of the same format, and says so. --help lists the flags.
#include <lockstep/lockstep.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <cxxopts.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

namespace ls = lockstep;
namespace nn = lockstep::nn;

// Two convolutions, each with pooling and local response normalisation, then three linear layers.
struct Net : nn::Sequential {
  Net() {
    constexpr auto kReLU = ls::Activation::kReLU;
    const ls::LrnOptions lrn{.radius = 4, .bias = 1, .alpha = 0.001f / 9, .beta = 0.75f};
    const ls::MaxPool2dOptions halve{.stride = {2, 2}, .padding = ls::Padding::all(1)};
    append_named<nn::Conv2d>("conv1", 3, 64, ls::Size2{5, 5}, nn::Conv2dLayerOptions{.padding = ls::Padding::all(2), .activation = kReLU});
    append_named<nn::MaxPool2d>("pool1", ls::Size2{3, 3}, halve);
    append_named<nn::LocalResponseNorm>("norm1", lrn);
    append_named<nn::Conv2d>("conv2", 64, 64, ls::Size2{5, 5}, nn::Conv2dLayerOptions{.padding = ls::Padding::all(2), .activation = kReLU});
    append_named<nn::LocalResponseNorm>("norm2", lrn);
    append_named<nn::MaxPool2d>("pool2", ls::Size2{3, 3}, halve);
    append_named<nn::Flatten>("flatten");
    append_named<nn::Linear>("local3", 6 * 6 * 64, 384, nn::LinearLayerOptions{.activation = kReLU});
    append_named<nn::Linear>("local4", 384, 192, nn::LinearLayerOptions{.activation = kReLU});
    append_named<nn::Linear>("softmax", 192, 10);
  }
};

struct Flags {
  std::string data, recipe, checkpoint, resume_from, json_file, dtype;
  std::int64_t epochs, batch, steps, save_every, log_every;
  std::uint64_t seed;
  float lr;
  bool augment, generated, resume, auto_resume, summary;
};

static bool read_flags(int argc, char** argv, Flags& flags) {
  cxxopts::Options options("cifar10", "Trains the CIFAR-10 tutorial network on every rank of the job.");
  auto add = options.add_options();
  add("data", "folder with data_batch_*.bin and test_batch.bin; else LOCKSTEP_DATA", cxxopts::value(flags.data)->default_value(""));
  add("generated", "train on the generated set even if there is data", cxxopts::value(flags.generated));
  add("recipe", "the only one is 'quick': one-cycle rate, momentum 0.9", cxxopts::value(flags.recipe)->default_value("quick"));
  add("epochs", "passes over the training set", cxxopts::value(flags.epochs)->default_value("6"));
  add("steps", "stop after so many steps (0: all), as if the rest were to follow", cxxopts::value(flags.steps)->default_value("0"));
  add("batch", "global batch, divided by the ranks", cxxopts::value(flags.batch)->default_value("128"));
  add("lr", "peak learning rate (0: 0.05, and 0.02 on the generated set)", cxxopts::value(flags.lr)->default_value("0"));
  add("seed", "of weights, order and augmentation", cxxopts::value(flags.seed)->default_value("1"));
  add("dtype", "what layers compute in: float32, bfloat16, float16; weights stay float32",
      cxxopts::value(flags.dtype)->default_value("float32"));
  add("augment", "random crop, flip, brightness, contrast", cxxopts::value(flags.augment)->default_value("true"));
  add("checkpoint", "folder for checkpoints, one an epoch", cxxopts::value(flags.checkpoint)->default_value(""));
  add("save-every", "steps between checkpoints within an epoch (0: none)", cxxopts::value(flags.save_every)->default_value("0"));
  add("resume", "go on from the newest checkpoint there, or from --resume=DIR: another run's folder, or one checkpoint's own",
      cxxopts::value(flags.resume_from)->implicit_value(""), "[=DIR]");
  add("auto-resume", "the same, or begin if there is none yet: for jobs that are restarted with the same command",
      cxxopts::value(flags.auto_resume));
  add("log-every", "steps between two lines of a log", cxxopts::value(flags.log_every)->default_value("20"));
  add("json-file", "write the figures there", cxxopts::value(flags.json_file)->default_value(""));
  add("summary", "print the network first", cxxopts::value(flags.summary));
  add("help", "this text");
  try {
    const auto parsed = options.parse(argc, argv);
    if (parsed.count("help") != 0) {
      std::printf("%s", options.help().c_str());
      return false;
    }
    flags.resume = parsed.count("resume") != 0;
    if (!parsed.unmatched().empty()) throw ls::InvalidArgument("unknown argument '{}', see --help", parsed.unmatched().front());
  } catch (const cxxopts::exceptions::exception& error) {
    throw ls::InvalidArgument("{}, see --help", error.what());
  }
  if (flags.recipe != "quick") throw ls::InvalidArgument("--recipe {}: the only recipe is 'quick'", flags.recipe);
  if (flags.epochs < 1 || flags.batch < 1 || flags.steps < 0 || flags.save_every < 0 || flags.log_every < 1 || !(flags.lr >= 0))
    throw ls::InvalidArgument("--epochs, --batch and --log-every must be positive, --lr, --steps and --save-every not negative");
  if (flags.epochs > 1'000'000) throw ls::InvalidArgument("--epochs {}: at most 1000000", flags.epochs);
  if (flags.resume && flags.auto_resume) throw ls::InvalidArgument("--resume and --auto-resume: only one of them");
  if (((flags.resume && flags.resume_from.empty()) || flags.auto_resume || flags.save_every > 0) && flags.checkpoint.empty())
    throw ls::InvalidArgument("--resume, --auto-resume and --save-every need --checkpoint DIR");
  if (flags.resume_from.empty()) flags.resume_from = flags.checkpoint;
  return true;
}

struct Data {
  std::unique_ptr<ls::data::Cifar10> train, test;
  std::string what;
};

// `source` is a folder, or a generated set: that every rank makes for itself, in memory, and a rank that is killed leaves no file of it.
template <typename Source>
static Data open_data(const Source& source, const Flags& flags, const std::string& what) {
  using ls::data::Cifar10;
  Data data{std::make_unique<Cifar10>(source, ls::data::Cifar10Options{.augment = flags.augment, .seed = flags.seed}),
            std::make_unique<Cifar10>(source, ls::data::Cifar10Options{.train = false, .augment = false}), ""};
  data.what = fmt::format("{} ({} training, {} test images)", what, data.train->size(), data.test->size());
  return data;
}

struct Score {
  double accuracy, loss;
  std::int64_t images;
};

// Every test image counts exactly once, on one of the ranks.
static Score evaluate(ls::ProcessGroup& group, Net& net, const ls::data::Cifar10& test) {
  const ls::NoGrad no_grad;
  net.train(false);
  ls::data::DistributedSampler sampler(test.size(), group.place(), {.shuffle = false, .remainder = ls::data::Remainder::kExact});
  std::array<double, 3> sums{};  // correct, loss, images
  for (auto& [images, labels] : ls::data::DataLoader(test, sampler, {.batch_size = 250, .device = &group.local_device()})) {
    const ls::Tensor logits = net(images);
    const auto count = static_cast<double>(labels.count());
    sums[0] += static_cast<double>(nn::count_correct(logits, labels));
    sums[1] += nn::cross_entropy(logits, labels).item() * count;
    sums[2] += count;
  }
  group.all_reduce(std::span<double>(sums));
  net.train(true);
  return {sums[0] / sums[2], sums[1] / sums[2], static_cast<std::int64_t>(sums[2])};
}

// Written beside and then moved, so that no reader finds half of it; what is no plain file (/dev/stdout) is written as it is.
static void write_json_file(const std::string& path, const std::string& text, bool only_try = false) {
  namespace fs = std::filesystem;
  std::error_code failure;
  const fs::file_type type = fs::symlink_status(path, failure).type();
  if (type == fs::file_type::directory) throw ls::FileError("--json-file {}: is a folder", path);
  const bool beside = type == fs::file_type::regular || type == fs::file_type::not_found;
  const std::string written = beside ? fmt::format("{}.writing-{}", path, getpid()) : path;
  errno = 0;
  std::ofstream file(written, only_try ? std::ios::app : std::ios::trunc);
  file << text;
  file.close();
  bool done = !file.fail();
  if (done && beside && !only_try) done = std::rename(written.c_str(), path.c_str()) == 0;
  const int reason = errno;
  if (beside && (only_try || !done)) fs::remove(written, failure);
  if (!done) throw ls::FileError("--json-file {}: cannot be written: {}", path, std::strerror(reason));
}

// A checkpoint of another seed or batch would go on at a place where that run never was.
static void check_resumed(const ls::CheckpointState& saved, const ls::data::SamplerState& place, const Flags& flags,
                          std::int64_t steps_per_epoch) {
  if (place.seed != flags.seed) throw ls::InvalidArgument("--seed {}: {} was written with --seed {}", flags.seed, saved.folder, place.seed);
  if (place.consumed % flags.batch != 0 || saved.epoch * steps_per_epoch + place.consumed / flags.batch != saved.step)
    throw ls::InvalidArgument("--batch {}: {} was written with another batch or data set: it is at step {}, in epoch {} behind {} images",
                              flags.batch, saved.folder, saved.step, saved.epoch + 1, place.consumed);
}

// Nullopt: the run begins. Only --auto-resume begins one where nothing is: a mistyped folder is no new run.
static std::optional<ls::CheckpointState> resume(const Flags& flags, const ls::CheckpointParts& parts) {
  if (flags.resume) return ls::resume_checkpoint(flags.resume_from, parts);
  if (flags.auto_resume) return ls::load_checkpoint(flags.checkpoint, parts);
  return std::nullopt;
}

static int train(const Flags& flags) {
  const ls::DType type = ls::autocast_type(flags.dtype);
  const auto group = ls::init_process_group();
  const int ranks = group->world_size();
  if (flags.batch % ranks != 0) throw ls::InvalidArgument("--batch {} cannot be divided among {} ranks", flags.batch, ranks);
  // Better told now than after the training.
  if (group->rank() == 0 && !flags.json_file.empty()) write_json_file(flags.json_file, "", /*only_try=*/true);
  if (!flags.checkpoint.empty() && !flags.resume) ls::prepare_checkpoint_folder(flags.checkpoint);
  const std::string folder = flags.generated ? "" : ls::data::find_cifar10(flags.data);
  const Data data = folder.empty() ? open_data(ls::data::GeneratedCifar10{}, flags, "generated images of 10 textures")
                                   : open_data(folder, flags, "CIFAR-10 in " + folder);
  if (flags.batch > data.train->size())
    throw ls::InvalidArgument("--batch {} is larger than the set of {} images", flags.batch, data.train->size());

  const ls::AutoCast autocast(type);  // for training and evaluation alike
  ls::optim::LossScaler scaler;
  const bool is_scaled = type == ls::DType::kFloat16;
  const float peak_rate = flags.lr > 0 ? flags.lr : folder.empty() ? 0.02f : 0.05f;
  ls::manual_seed(flags.seed);
  Net net;
  net.to(group->local_device());
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::SGD sgd(ddp.parameters(), {.lr = peak_rate, .momentum = 0.9f, .loss_scaler = is_scaled ? &scaler : nullptr});
  ls::data::DistributedSampler sampler(data.train->size(), group->place(), {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  const std::int64_t steps_per_epoch = data.train->size() / flags.batch, total_steps = flags.epochs * steps_per_epoch;
  const ls::optim::OneCycleRate rate{peak_rate, total_steps};

  std::int64_t step = 0, epoch = 0;
  std::string saved_in;
  const auto save = [&] {
    return ls::save_checkpoint(flags.checkpoint,
                               {.model = net, .optimizer = sgd, .sampler = sampler, .ddp = ddp, .step = step, .epoch = epoch});
  };
  const bool is_first = group->rank() == 0;
  ls::Progress progress({.enabled = is_first,
                         .terminal_width = ls::terminal_width(),
                         .total_steps = total_steps,
                         .steps_per_epoch = steps_per_epoch,
                         .log_every = flags.log_every});
  if (is_first && flags.summary) progress.message(nn::summary(net, {flags.batch / ranks, 24, 24, 3}));
  progress.message(fmt::format("data: {}", data.what));
  progress.message(fmt::format("ranks: {}, {} images a step each, backend {} over {}", ranks, flags.batch / ranks, group->backend().name(),
                               group->backend().transport()));
  if (const auto saved = resume(flags, {.model = net, .optimizer = sgd, .sampler = sampler})) {
    check_resumed(*saved, sampler.state(), flags, steps_per_epoch);
    step = saved->step;
    epoch = saved->epoch;
    saved_in = saved->folder;
    progress.message(fmt::format("resumed at step {} from {}", step, saved->folder));
    if (!flags.checkpoint.empty()) ls::prepare_checkpoint_folder(flags.checkpoint);
  } else if (flags.auto_resume) {
    progress.message(fmt::format("no checkpoint in {} yet: starting anew", flags.checkpoint));
  }

  nlohmann::json figures = {
      {"ranks", ranks}, {"data", data.what}, {"losses", nlohmann::json::array()}, {"epochs", nlohmann::json::array()}};
  const std::int64_t last_step = flags.steps > 0 ? std::min(flags.steps, total_steps) : total_steps;
  const auto begin = std::chrono::steady_clock::now();
  while (step < last_step) {
    if (step == epoch * steps_per_epoch) sampler.set_epoch(epoch);  // else a checkpoint put it into the middle
    for (auto& [images, labels] : ls::data::DataLoader(
             *data.train, sampler, {.batch_size = flags.batch / ranks, .device = &group->local_device(), .drop_last = true})) {
      sgd.set_lr(rate.at(step));
      sgd.zero_grad();
      const ls::Tensor loss = nn::cross_entropy(ddp(images), labels);
      ls::check_finite_loss(loss.item(), step + 1, group->rank());
      (is_scaled ? scaler.scale(loss) : loss).backward();  // buckets all-reduce while this runs
      sgd.step();
      sampler.advance(flags.batch);
      figures["losses"].push_back(loss.item());
      progress.step(++step, loss.item(), flags.batch);
      if (flags.save_every > 0 && step % flags.save_every == 0) saved_in = save();
      if (step == last_step) break;
    }
    if (step != (epoch + 1) * steps_per_epoch) break;
    ++epoch;
    const Score score = evaluate(*group, net, *data.test);
    figures["epochs"].push_back({{"epoch", epoch}, {"accuracy", score.accuracy}, {"loss", score.loss}});
    progress.message(
        fmt::format("epoch {}: accuracy {:.4f} on {} held-out images, loss {:.3f}", epoch, score.accuracy, score.images, score.loss));
    if (!flags.checkpoint.empty()) {
      sampler.set_epoch(epoch);
      saved_in = save();
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  const Score score = evaluate(*group, net, *data.test);
  ls::check_replicas_equal(*group, net.named_parameters(), "weights");
  progress.message(fmt::format("accuracy {:.4f} on {} held-out images, loss {:.3f}", score.accuracy, score.images, score.loss));
  progress.message(fmt::format("{} steps in {:.1f} s; weights {} on all {} ranks", step, seconds,
                               ls::hash_of(net.named_parameters()).substr(0, 16), ranks));
  progress.message(flags.checkpoint.empty() ? "no checkpoint was asked for (--checkpoint DIR)"
                   : saved_in.empty()       ? "no checkpoint: stopped before the first was due (--save-every STEPS)"
                                            : "checkpoint in " + saved_in);
  if (is_scaled) progress.message(fmt::format("loss scale {}, {} steps skipped", scaler.value(), scaler.skipped_steps()));
  if (is_first && !flags.json_file.empty()) {
    figures.update({{"accuracy", score.accuracy},
                    {"loss", score.loss},
                    {"steps", step},
                    {"seconds", seconds},
                    {"weights_sha256", ls::hash_of(net.named_parameters())},
                    {"checkpoint", saved_in}});
    write_json_file(flags.json_file, figures.dump(1) + "\n");
  }
  return 0;
}

int main(int argc, char** argv) {
  return ls::run_main(
      "cifar10",
      [](int count, char** arguments) {
        Flags flags{};
        return read_flags(count, arguments, flags) ? train(flags) : 0;
      },
      argc, argv);
}
