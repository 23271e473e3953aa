"""Models of transformers and torchvision with random weights, for pretrained_python_test.cpp.

reference_models.py make FOLDER: writes FOLDER/<model>/config.json and model.safetensors as save_pretrained() does, and
expected.safetensors: inputs, results, and the losses of 50 AdamW steps.
reference_models.py check FOLDER: loads FOLDER/<model>/again, which Lockstep has written, and compares what it computes
with Lockstep's result.
"""
import os
import sys

import tokenizers
import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
VOCABULARY, BATCH, LENGTH, STEPS = 300, 3, 12, 50
ADAMW = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


def decoder(kind, **options):
    config = transformers.AutoConfig.for_model(kind, **options)
    torch.manual_seed(5)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def llama(kind="llama", **options):
    return decoder(kind, vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                   num_attention_heads=4, max_position_embeddings=64, **options)


def gpt2():
    return decoder("gpt2", vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, embd_pdrop=0,
                   attn_pdrop=0, resid_pdrop=0, bos_token_id=0, eos_token_id=0)


def bert():
    torch.manual_seed(5)
    config = transformers.BertConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0,
                                     attention_probs_dropout_prob=0)
    return transformers.BertModel(config).eval()


LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16, rope_theta=5000.0)
DECODERS = {
    "gpt2": gpt2,
    "llama": lambda: llama(num_key_value_heads=2),
    "llama3": lambda: llama(num_key_value_heads=1, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama_bf16": lambda: llama(num_key_value_heads=4, attention_bias=True),
    "qwen2": lambda: llama("qwen2", num_key_value_heads=2),
    "qwen3": lambda: llama("qwen3", num_key_value_heads=2, head_dim=16),
}
RESNETS = {"resnet18": torchvision.models.resnet18, "resnet50": torchvision.models.resnet50}


def ids_for(seed):
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits.float()


def losses_of(model, parameters):
    optimizer = torch.optim.AdamW(parameters, **ADAMW)
    losses = []
    for step in range(STEPS):
        ids = ids_for(100 + step)
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


class Lora(torch.nn.Module):
    """A layer of transformers, whose weight is (out, in) or, of a Conv1D, (in, out), and matrices beside it."""

    def __init__(self, layer, rank, alpha):
        super().__init__()
        self.layer, self.scale = layer, alpha / rank
        inputs, outputs = layer.weight.shape if layer.__class__.__name__ == "Conv1D" else layer.weight.shape[::-1]
        self.a = torch.nn.Parameter(torch.randn(rank, inputs) * 0.1)
        self.b = torch.nn.Parameter(torch.randn(outputs, rank) * 0.1)

    def forward(self, x):
        return self.layer(x) + self.scale * (x @ self.a.T @ self.b.T)


def add_lora(model):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    added = {}
    torch.manual_seed(6)
    for name, module in list(model.named_modules()):
        if name.endswith("attn.c_attn") or name.endswith("mlp.c_fc"):
            lora = Lora(module, rank=4, alpha=8)
            parent, child = name.rsplit(".", 1)
            setattr(model.get_submodule(parent), child, lora)
            added[name.removeprefix("transformer.")] = lora
    return added


def make_decoder(name, folder):
    model = DECODERS[name]()
    if name == "llama_bf16":
        model = model.bfloat16()
    model.save_pretrained(folder)
    expected = {"ids": ids_for(1), "batches": torch.stack([ids_for(100 + step) for step in range(STEPS)])}
    if name == "llama_bf16":
        model = model.float()
    expected["logits"] = logits_of(model, expected["ids"])
    expected["losses"] = losses_of(model, model.parameters())
    expected["tuned_logits"] = logits_of(model, expected["ids"])
    if name == "gpt2":
        model = gpt2()
        added = add_lora(model)
        for path, lora in added.items():
            expected[f"lora.{path}.lora_A.weight"] = lora.a.detach().clone()
            expected[f"lora.{path}.lora_B.weight"] = lora.b.detach().clone()
        expected["lora_losses"] = losses_of(model, [p for p in model.parameters() if p.requires_grad])
        expected["lora_logits"] = logits_of(model, expected["ids"])
    return expected


def make_bert(folder):
    model = bert()
    model.save_pretrained(folder)
    ids, lengths = ids_for(2), torch.tensor([LENGTH, 5, 1])
    mask = (torch.arange(LENGTH)[None, :] < lengths[:, None]).long()
    types = (torch.arange(LENGTH)[None, :] >= 4).long().expand(BATCH, LENGTH)
    with torch.no_grad():
        plain = model(input_ids=ids)
        padded = model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        hidden = padded.last_hidden_state
        mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    return {"ids": ids, "lengths": lengths, "types": types.contiguous(), "hidden": plain.last_hidden_state,
            "padded": hidden * mask[:, :, None], "pooled": padded.pooler_output,
            "sentences": torch.nn.functional.normalize(mean)}


def make_resnet(name, folder):
    torch.manual_seed(5)
    model = RESNETS[name](num_classes=10)
    images = torch.randn(2, 3, 64, 48)
    model.train()
    for _ in range(3):
        model(images + torch.randn(1))  # running statistics
    model.eval()
    os.makedirs(folder)
    save_file(model.state_dict(), folder + "/model.safetensors", {"format": "pt"})
    with torch.no_grad():
        return {"images": images.permute(0, 2, 3, 1).contiguous(), "logits": model(images)}


def make_tokenizer(folder):
    """Byte-level pairs, and a text to tune on."""
    words = "the model reads a short text and learns its words one after the other".split()
    generator = torch.Generator().manual_seed(3)
    picks = torch.randint(0, len(words), (4000,), generator=generator).tolist()
    text = " ".join(words[pick] for pick in picks)
    with open(folder + "/text.txt", "w", encoding="utf-8") as file:
        file.write(text)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=VOCABULARY, show_progress=False)
    tokenizer.save(folder + "/tokenizer.json")


def make(root):
    for name in [*DECODERS, "bert", *RESNETS]:
        folder = os.path.join(root, name)
        if name in DECODERS:
            expected = make_decoder(name, folder)
        elif name == "bert":
            expected = make_bert(folder)
        else:
            expected = make_resnet(name, folder)
        save_file({key: value.contiguous() for key, value in expected.items()}, folder + "/expected.safetensors")
    make_tokenizer(os.path.join(root, "gpt2"))
    sharded = os.path.join(root, "sharded")
    DECODERS["llama"]().save_pretrained(sharded, max_shard_size="20KB")


def check(root):
    failures = 0
    tuned = transformers.AutoModelForCausalLM.from_pretrained(os.path.join(root, "gpt2", "tuned"))
    print(f"gpt2_lora: {sum(p.numel() for p in tuned.parameters())} parameters")
    for name in [*DECODERS, "bert", *RESNETS]:
        folder = os.path.join(root, name)
        expected = load_file(folder + "/expected.safetensors")
        written = folder + "/again"
        found = load_file(written + "/found.safetensors")["result"]
        with torch.no_grad():
            if name in RESNETS:
                model = RESNETS[name](num_classes=10).eval()
                model.load_state_dict(load_file(written + "/model.safetensors"))
                wanted = model(expected["images"].permute(0, 3, 1, 2))
            elif name == "bert":
                wanted = transformers.BertModel.from_pretrained(written).eval()(expected["ids"]).last_hidden_state
            else:
                model = transformers.AutoModelForCausalLM.from_pretrained(written, dtype=torch.float32).eval()
                wanted = logits_of(model, expected["ids"])
        error = ((found - wanted).abs().max() / wanted.abs().max()).item()
        print(f"{name}: largest difference {error:.2g} of the largest value")
        if not error <= 3e-5:
            failures += 1
    sys.exit(1 if failures else 0)


{"make": make, "check": check}[sys.argv[1]](sys.argv[2])
