#include "examples/cifar10/run.h"

#include <optional>
#include <utility>

namespace ls = lockstep;
namespace nn = lockstep::nn;
namespace ex = lockstep::examples;

namespace {

// With another seed or batch, a resumed run would continue at a position that the saved run never had.
void check_resumed(const ls::train::CheckpointState& saved, const ls::data::SamplerState& place, const Flags& flags,
                   std::int64_t steps_per_epoch) {
  if (place.seed != flags.seed)
    throw ls::InvalidArgument("--seed {}: {} was written with --seed {}", flags.seed, saved.folder, place.seed);
  if (place.consumed % flags.batch != 0 || saved.epoch * steps_per_epoch + place.consumed / flags.batch != saved.step)
    throw ls::InvalidArgument(
        "--batch {}: {} was written with another batch or data set: it is at step {}, in epoch {} after {} images",
        flags.batch, saved.folder, saved.step, saved.epoch + 1, place.consumed);
}

}  // namespace

void Run::introduce() {
  const std::int64_t each = flags.batch / group.world_size();
  if (flags.summary) {
    const std::int64_t side = recipe.augmentation.crop;
    progress.message(nn::summary(net, {each, side, side, 3}));
  }
  progress.message(fmt::format("data: {}", data.what));
  progress.message(fmt::format("ranks: {}, {} images a step each, backend {} over {}", group.world_size(), each,
                               group.backend().name(), group.backend().transport()));
  figures = {{"ranks", group.world_size()},
             {"data", data.what},
             {"losses", nlohmann::json::array()},
             {"epochs", nlohmann::json::array()}};
}

// Only --auto-resume starts a run in an empty folder: a mistyped name with --resume is an error.
void Run::resume() {
  const ls::train::CheckpointParts parts{.model = net, .optimizer = sgd, .sampler = sampler, .ddp = ddp};
  std::optional<ls::train::CheckpointState> saved;
  if (flags.resume) saved = ls::train::resume_checkpoint(flags.resume_from, parts);
  if (flags.auto_resume) saved = ls::train::load_checkpoint(flags.checkpoint, parts);
  if (!saved) {
    if (flags.auto_resume)
      progress.message(fmt::format("no checkpoint in {} yet: starting a new run", flags.checkpoint));
    return;
  }
  check_resumed(*saved, sampler.state(), flags, steps.per_epoch);
  step = saved->step;
  epoch = saved->epoch;
  saved_in = saved->folder;
  progress.message(fmt::format("resumed at step {} from {}", step, saved->folder));
  if (!flags.checkpoint.empty()) ls::train::prepare_checkpoint_folder(flags.checkpoint);
}

void Run::save() {
  read_losses();
  const std::string written = ls::train::save_checkpoint(
      flags.checkpoint, {.model = net, .optimizer = sgd, .sampler = sampler, .ddp = ddp, .step = step, .epoch = epoch});
  if (!written.empty()) saved_in = written;  // a disk that fails is a warning
}

void Run::train_epoch() {
  if (step == epoch * steps.per_epoch) sampler.set_epoch(epoch);  // else a checkpoint set its position
  const std::int64_t each = flags.batch / group.world_size();
  for (auto& [images, labels] : ls::data::DataLoader(
           *data.train, sampler, {.batch_size = each, .device = &group.local_device(), .drop_last = true})) {
    sgd.set_lr(rate.at(step));
    sgd.zero_grad();
    const ls::Tensor loss = nn::cross_entropy(ddp(images), labels, {.label_smoothing = recipe.label_smoothing});
    (scaler != nullptr ? scaler->scale(loss) : loss).backward();  // buckets all-reduce while this runs
    sgd.step();
    sampler.advance(flags.batch);
    unread.push_back(ls::detach(loss));
    progress.step(++step, loss, flags.batch);
    if (step % flags.log_every == 0) read_losses();
    if (flags.save_every > 0 && step % flags.save_every == 0) save();
    if (step == steps.last) break;
  }
  read_losses();
}

// Reading waits for the device, so it is not done in every step. A NaN is found before a checkpoint could have it.
void Run::read_losses() {
  std::int64_t of_step = step - static_cast<std::int64_t>(unread.size());
  for (const ls::Tensor& loss : std::exchange(unread, {}))
    figures["losses"].push_back(ls::train::check_finite(loss, ++of_step));
}

void Run::finish_epoch() {
  const ex::Score score = ex::score_of(net, *data.test, group.local_device());
  progress.message(fmt::format("epoch {}: {}", epoch, score.text()));
  figures["epochs"].push_back({{"epoch", ++epoch}, {"accuracy", score.accuracy}, {"loss", score.loss}});  // epochs done
  if (flags.checkpoint.empty()) return;
  sampler.set_epoch(epoch);
  save();
}

void report(Run& run, double seconds) {
  const ex::Score score = ex::score_of(run.net, *run.data.test, run.group.local_device());
  ls::check_replicas_equal(run.group, run.net.named_parameters(), "weights");
  const std::string hash = ls::hash_of(run.net.named_parameters());
  run.progress.message(score.text());
  run.progress.message(fmt::format("{} steps in {:.1f} s; weights {} on all {} ranks", run.step, seconds,
                                   hash.substr(0, 16), run.group.world_size()));
  run.progress.message(run.flags.checkpoint.empty() ? "no checkpoint was requested (--checkpoint DIR)"
                       : run.saved_in.empty()       ? "no checkpoint was saved: --save-every STEPS says when"
                                                    : "checkpoint in " + run.saved_in);
  if (run.scaler != nullptr)
    run.progress.message(
        fmt::format("loss scale {}, {} steps skipped", run.scaler->value(), run.scaler->skipped_steps()));
  run.figures.update({{"accuracy", score.accuracy},
                      {"validation_loss", score.loss},
                      {"steps", run.step},
                      {"seconds", seconds},
                      {"weights_sha256", hash},
                      {"checkpoint", run.saved_in}});
  write_json_file(run.flags, run.group, run.figures);
}
