"""Training steps of PyTorch's DistributedDataParallel on the CPU, with the models of bench/train_step.

torchrun --standalone --nproc-per-node 2 train_step_ddp.py --model cifar10 --tuned
torchrun --standalone --nproc-per-node 2 train_step_ddp.py --model gpt2 --tuned --variant compile --steps 5

cifar10        two 5x5 convolutions with pooling and LRN, three linear layers; 24x24 images, 128 per rank
cifar10-nolrn  the same without LRN
mlp            four hidden layers of 2048, 64 samples per rank: much communication, little computation
resnet20       ResNet-20 with shortcuts of option A (He et al. 2015, section 4.2); 32x32 images, 64 per rank; momentum and decay
gpt            decoder-only transformer: 4 layers of width 256 with 4 heads, tied head; 8 texts of 128 characters per rank; AdamW
gpt2           GPT-2 124M as train_gpt2.c of llm.c trains it: 12 layers of width 768 with 12 heads, 1,024 positions, tied head; 4 texts of
               64 of 50,257 tokens per rank; AdamW without decay
gpt2-124m      the same with 4 texts of 1,024 of 50,304 tokens, for GPUs

Each rank uses one thread; the first three models use plain SGD. --tuned: channels_last, gradients as views of their buckets, a static
graph, a fused optimizer where there is one. The first steps are not timed, because DDP arranges its buckets in them and torch.compile
compiles. Rank 0 prints one JSON line.

--variant eager    runs each operator when it is called
--variant compile  torch.compile of the model and of the optimizer's step; needs a C++ compiler
--variant bf16     eager, with forward and loss under autocast to bfloat16, which is less exact than the other two
"""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

MODELS = ["cifar10", "cifar10-nolrn", "mlp", "resnet20", "gpt", "gpt2", "gpt2-124m"]
VARIANTS = ["eager", "compile", "bf16"]
SKIPPED_STEPS = 4


def cifar10(with_lrn):
    def lrn():
        # PyTorch divides alpha by the window: TensorFlow's 0.001 / 9 is 0.001 here.
        return nn.LocalResponseNorm(size=9, alpha=0.001, beta=0.75, k=1.0) if with_lrn else nn.Identity()

    def pool():
        return nn.MaxPool2d(kernel_size=3, stride=2, padding=1)

    convolutions = [nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), pool(), lrn(), nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), lrn(), pool()]
    classifier = [nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)]
    return nn.Sequential(*convolutions, *classifier)


def mlp():
    hidden = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(2048, 10))


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.stride, self.margin = stride, (outside - inside) // 2

    def forward(self, x):
        y = self.norm2(self.conv2(nn.functional.relu(self.norm1(self.conv1(x)))))
        if self.stride != 1:
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.margin, self.margin))
        return nn.functional.relu(y + x)


class AveragePixels(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def resnet20():
    layers, inside = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for outside in (16, 32, 64):
        for _ in range(3):
            layers.append(Residual(inside, outside, 1 if inside == outside else 2))
            inside = outside
    return nn.Sequential(*layers, AveragePixels(), nn.Linear(64, 10))


class Block(nn.Module):
    def __init__(self, width, heads, gelu):
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, positions, width = x.shape
        by_head = self.qkv(self.norm1(x)).view(batch, positions, 3, self.heads, width // self.heads)
        q, k, v = by_head.permute(2, 0, 3, 1, 4).unbind()
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, positions, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate=self.gelu))


class Gpt(nn.Module):
    def __init__(self, layers=4, width=256, heads=4, positions=128, characters=65, gelu="none", deviation=1):
        super().__init__()
        self.words, self.places = nn.Embedding(characters, width), nn.Embedding(positions, width)
        for each in (self.words, self.places):
            nn.init.normal_(each.weight, std=deviation)
        self.blocks, self.norm = nn.Sequential(*(Block(width, heads, gelu) for _ in range(layers))), nn.LayerNorm(width)

    def forward(self, text):
        x = self.words(text) + self.places.weight[: text.shape[1]]
        return nn.functional.linear(self.norm(self.blocks(x)), self.words.weight).flatten(0, 1)


def gpt2(characters):
    return Gpt(layers=12, width=768, heads=12, positions=1024, characters=characters, gelu="tanh", deviation=0.02)


def make_optimizer(name, parameters, tuned, on_gpu=False):
    if name == "gpt":
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=tuned)
    if name in ("gpt2", "gpt2-124m"):
        return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0, fused=tuned)
    fused = {"fused": True} if tuned and on_gpu else {}
    if name == "resnet20":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, **fused)
    return torch.optim.SGD(parameters, lr=0.01, **fused)


def make(name, tuned):
    """The model and one batch of generated samples and labels."""
    if name == "gpt":
        return Gpt(), torch.randint(0, 65, (8, 128)), torch.randint(0, 65, (8 * 128,))
    if name in ("gpt2", "gpt2-124m"):
        characters, length = (50257, 64) if name == "gpt2" else (50304, 1024)
        return gpt2(characters), torch.randint(0, characters, (4, length)), torch.randint(0, characters, (4 * length,))
    if name == "mlp":
        return mlp(), torch.randn(64, 2048), torch.randint(0, 10, (64,))
    if name == "resnet20":
        model, images = resnet20(), torch.randn(64, 3, 32, 32)
    else:
        model, images = cifar10(with_lrn=name == "cifar10"), torch.randn(128, 3, 24, 24)
    if tuned:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    return model, images, torch.randint(0, 10, (len(images),))


def limit_compiler():
    """torch.compile chooses vectors by ATEN_CPU_CAPABILITY, but lets the C++ compiler use all of this processor's instructions."""
    if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
        import torch._inductor.config as inductor

        inductor.cpp.march = "x86-64-v3"


class WithLoss(nn.Module):
    """One module, so that torch.compile makes one graph of them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, samples, labels):
        return nn.functional.cross_entropy(self.model(samples), labels)


def parallel(model, flags):
    """The module itself on one rank. It is compiled inside DDP, because a static graph excludes that DDP is compiled, too."""
    if flags.variant == "compile":
        limit_compiler()
        model.compile()
    if not dist.is_initialized():
        return model
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=flags.tuned, static_graph=flags.tuned)


def time_steps(model, optimizer, samples, labels, flags):
    update = torch.compile(optimizer.step) if flags.variant == "compile" else optimizer.step
    seconds = []
    for _ in range(SKIPPED_STEPS + flags.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=flags.variant == "bf16"):
            loss = model(samples, labels)
        loss.backward()
        update()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[SKIPPED_STEPS:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="cifar10")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--variant", choices=VARIANTS, default="eager")
    parser.add_argument("--steps", type=int, default=15)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, samples, labels = make(flags.model, flags.tuned)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        dist.init_process_group("gloo")
    model = parallel(WithLoss(model), flags)
    optimizer = make_optimizer(flags.model, model.parameters(), flags.tuned)
    try:
        seconds = time_steps(model, optimizer, samples, labels, flags)
    except Exception as error:
        if flags.variant == "compile":
            print(f"torch.compile failed: {' '.join(str(error).split())[:300]}", file=sys.stderr, flush=True)
        raise
    median = seconds[len(seconds) // 2]
    if rank == 0:
        line = {
            "peer": "pytorch-" + torch.__version__,
            "model": flags.model,
            "tuned": flags.tuned,
            "variant": flags.variant,
            "ranks": ranks,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "step_ms": round(median * 1e3, 2),
            "min_ms": round(seconds[0] * 1e3, 2),
            "samples_per_s": round(len(samples) * ranks / median, 1),
        }
        print(json.dumps(line), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
