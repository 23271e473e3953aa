"""Training steps of PyTorch's DistributedDataParallel on the CPU, with the models of bench/train_step.

torchrun --standalone --nproc-per-node 2 train_step_ddp.py --model cifar10 --tuned

cifar10        two 5x5 convolutions with pooling and LRN, three linear layers; 24x24 images, 128 a rank
cifar10-nolrn  the same without LRN
mlp            four hidden layers of 2048, 64 samples a rank: much to communicate, little to compute

One thread a rank, plain SGD. --tuned: channels_last, gradients as views of their buckets, a static graph. The first
steps are left out: DDP lays out its buckets in them. One JSON line from rank 0.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

SKIPPED_STEPS = 4


def cifar10(with_lrn):
    def lrn():
        # PyTorch's alpha is divided by the window: TensorFlow's 0.001 / 9 there is 0.001 here.
        return nn.LocalResponseNorm(size=9, alpha=0.001, beta=0.75, k=1.0) if with_lrn else nn.Identity()

    def pool():
        return nn.MaxPool2d(kernel_size=3, stride=2, padding=1)

    convolutions = [nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), pool(), lrn(), nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), lrn(), pool()]
    classifier = [nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)]
    return nn.Sequential(*convolutions, *classifier)


def mlp():
    hidden = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(2048, 10))


def make(name, tuned):
    """The model and one batch of generated samples and labels."""
    if name == "mlp":
        return mlp(), torch.randn(64, 2048), torch.randint(0, 10, (64,))
    model, images = cifar10(with_lrn=name == "cifar10"), torch.randn(128, 3, 24, 24)
    if tuned:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    return model, images, torch.randint(0, 10, (128,))


def time_steps(model, samples, labels, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = []
    for _ in range(SKIPPED_STEPS + steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[SKIPPED_STEPS:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["cifar10", "cifar10-nolrn", "mlp"], default="cifar10")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--steps", type=int, default=15)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, samples, labels = make(flags.model, flags.tuned)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=flags.tuned, static_graph=flags.tuned)
    seconds = time_steps(model, samples, labels, flags.steps)
    median = seconds[len(seconds) // 2]
    if rank == 0:
        line = {
            "peer": "pytorch-" + torch.__version__,
            "model": flags.model,
            "tuned": flags.tuned,
            "ranks": ranks,
            "step_ms": round(median * 1e3, 2),
            "min_ms": round(seconds[0] * 1e3, 2),
            "samples_per_s": round(len(labels) * ranks / median, 1),
        }
        print(json.dumps(line), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
