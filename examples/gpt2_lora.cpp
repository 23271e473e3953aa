// Tunes a GPT-2 of Hugging Face on a text of your own, by low-rank matrices beside its attention (LoRA): 0.3 % of the
// weights are trained, and only their gradients travel. --model is a folder with config.json, model.safetensors and
// tokenizer.json, as transformers' save_pretrained() writes it. From the repository's root:
//
//   scripts/fetch-data tinyshakespeare
//   build/launcher/lockrun -n 2 build/examples/gpt2_lora --model gpt2 --text data/tinyshakespeare/input.txt --save out
//
// It prints the number of trained weights, its progress, and the losses of the first and the last step. The folder
// `out` is a model for transformers, with the matrices merged into its weights.
#include <lockstep/lockstep.h>

#include <filesystem>

#include "examples/lib/training.h"

namespace ls = lockstep;
namespace models = lockstep::models;
namespace ex = lockstep::examples;
namespace {

struct Flags : ex::TrainingFlags {
  std::string model, text, save;
  std::int64_t rank = 8, length = 128;
};

std::int64_t count_of(const std::vector<ls::NamedTensor>& tensors) {
  std::int64_t count = 0;
  for (const auto& [name, tensor] : tensors) count += tensor.count();
  return count;
}

// Only rank 0 writes. The tokenizer goes along, so that the folder is complete.
void save(const models::Gpt2& net, const Flags& flags) {
  models::save_pretrained(net, flags.save, {.names = models::gpt2_names(), .config = net.config().json()});
  std::filesystem::copy_file(flags.model + "/tokenizer.json", flags.save + "/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
}

int train(const Flags& flags) {
  if (flags.model.empty() || flags.text.empty())
    throw ls::InvalidArgument("--model FOLDER and --text FILE are needed: see --help");
  const auto group = ls::init_process_group();
  ls::Device& device = group->local_device();
  models::Gpt2 net(models::Gpt2Config::read(flags.model));
  models::load_pretrained(net, flags.model, {.names = models::gpt2_names(), .group = group});
  ls::manual_seed(flags.seed);
  ls::nn::add_lora(net, {.rank = flags.rank, .alpha = 16, .dropout = 0.05F, .target = R"(.*\.c_attn)"});
  net.to(device);
  ls::DistributedDataParallel ddp(net, group);

  const ls::data::Tokenizer tokenizer(flags.model);
  const auto windows = ls::data::tokenize_file(flags.text, tokenizer, {.length = flags.length});
  const ex::Steps steps = steps_of(flags, windows.size());
  ls::train::Progress progress(progress_of(flags, steps, *group, "windows"));
  progress.message(
      fmt::format("{} of {} weights are trained", count_of(ddp.parameters()), count_of(net.named_parameters())));
  ls::optim::AdamW adam(ddp.parameters(), {.lr = flags.lr});
  ls::data::DistributedSampler sampler(windows.size(), group->place(),
                                       {.seed = flags.seed, .remainder = ls::data::Remainder::kDrop});
  const std::int64_t batch = batch_of_rank(flags, group->world_size(), windows.size());
  float first = 0, last = 0;
  for (std::int64_t step = 0; step < steps.last;) {
    sampler.set_epoch(step / steps.per_epoch);
    for (auto& [tokens, next] :
         ls::data::DataLoader(windows, sampler, {.batch_size = batch, .device = &device, .drop_last = true})) {
      const ls::Tensor loss = ls::nn::cross_entropy(ddp(tokens), next);
      adam.zero_grad();
      loss.backward();
      adam.step();
      progress.step(++step, loss, flags.batch);
      if (step == 1) first = loss.item();
      if (step == steps.last) last = loss.item();
      if (step == steps.last) break;
    }
  }
  progress.message(fmt::format("loss {:.3f} in the first step, {:.3f} in the last", first, last));
  if (!flags.save.empty() && group->rank() == 0) save(net, flags);
  return 0;
}

int run(int argc, char** argv) {
  Flags flags;
  flags.steps = 100, flags.batch = 8, flags.lr = 1e-3F;
  const ex::Program program{"gpt2_lora", "Tunes a GPT-2 on a text by low-rank matrices.", "nothing: see --text"};
  const auto add = [&](cxxopts::OptionAdder& adder) {
    adder("model", "Folder with config.json, model.safetensors and tokenizer.json", cxxopts::value(flags.model));
    adder("text", "A text file, plain or gzip", cxxopts::value(flags.text));
    adder("save", "Folder for the tuned model", cxxopts::value(flags.save));
    adder("rank", "Rank of the matrices", cxxopts::value(flags.rank)->default_value("8"));
    adder("length", "Tokens of a window", cxxopts::value(flags.length)->default_value("128"));
  };
  return read_flags(program, argc, argv, flags, add) ? train(flags) : 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("gpt2_lora", run, argc, argv); }
