#!/usr/bin/env python3
"""examples/airbench's network, data and schedule with PyTorch, to compare the times to an accuracy on the same images.

airbench.py --data DIR [--target A] [--epochs N] [--width N]                                  DIR contains data_batch_*.bin and test_batch.bin
torchrun --standalone --nproc-per-node 2 airbench.py --data DIR                               two ranks, DistributedDataParallel over gloo

Flags, defaults and lines are those of examples/airbench.cpp. Each rank uses one thread, channels_last and gradients that are views of their
buckets; the batch norms of each rank use the statistics of its own part of the batch. The random numbers are PyTorch's.
"""

import argparse
import os
import pathlib
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

PADDING = 2


class Convolution(nn.Conv2d):
    """The first filters begin as the identity."""

    def __init__(self, inside, outside):
        super().__init__(inside, outside, 3, padding=1, bias=False)
        nn.init.dirac_(self.weight.data[: min(inside, outside)])


class Norm(nn.BatchNorm2d):
    def __init__(self, channels):
        super().__init__(channels, momentum=0.4)
        self.weight.requires_grad = False


def block(inside, outside):
    first = [Convolution(inside, outside), nn.MaxPool2d(2), Norm(outside), nn.GELU()]
    return nn.Sequential(*first, Convolution(outside, outside), Norm(outside), nn.GELU())


def whitening_filters(images):
    """The principal axes of 2 x 2 patches, each divided by the deviation along it, and their negatives."""
    patches = images[:1000].unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).double()
    variances, axes = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (axes / (variances + 5e-4).sqrt()).T.float().reshape(-1, 3, 2, 2)
    return torch.cat([filters, -filters])


class Net(nn.Module):
    def __init__(self, width, whitening):
        super().__init__()
        whiten = nn.Conv2d(3, len(whitening), 2, bias=False)
        whiten.weight.data.copy_(whitening)
        whiten.weight.requires_grad = False
        blocks = [block(len(whitening), width), block(width, 4 * width), block(4 * width, 4 * width)]
        self.features = nn.Sequential(whiten, nn.GELU(), *blocks, nn.MaxPool2d(3), nn.Flatten())
        self.head = nn.Linear(4 * width, 10, bias=False)

    def forward(self, images):
        return self.head(self.features(images)) / 9


def read(folder, pattern, count):
    records = numpy.concatenate([numpy.fromfile(path, numpy.uint8).reshape(-1, 3073) for path in sorted(pathlib.Path(folder).glob(pattern))])
    records = records[:count] if count else records
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()).float() / 255
    return images, torch.from_numpy(records[:, 0].astype(numpy.int64))


def normalised(images):
    mean, deviation = (torch.tensor(numbers).view(3, 1, 1) for numbers in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
    return (images - mean) / deviation


def augmented(padded):
    """Crops of 32 x 32 pixels at random places, half of them mirrored."""
    count = len(padded)
    rows, columns = torch.randint(0, 2 * PADDING + 1, (2, count, 1)) + torch.arange(32)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    image, channel = torch.arange(count).view(-1, 1, 1, 1), torch.arange(3).view(1, -1, 1, 1)
    return padded[image, channel, rows.view(count, 1, 32, 1), columns.view(count, 1, 1, 32)]


def score(net, images, labels, place):
    """Accuracy and loss; each image is on one rank, and all ranks have rank 0's running statistics."""
    rank, ranks = place
    if ranks > 1:
        for buffer in net.buffers():
            dist.broadcast(buffer, 0)
    net.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for part in torch.arange(rank, len(images), ranks).split(250):
            logits = net(images[part].contiguous(memory_format=torch.channels_last))
            sums[0] += (logits.argmax(1) == labels[part]).sum()
            sums[1] += functional.cross_entropy(logits, labels[part], reduction="sum")
    net.train()
    if ranks > 1:
        dist.all_reduce(sums)
    return (sums / len(images)).tolist()


def make_sgd(net, flags):
    trained = [(name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad]
    filters = [parameter for name, parameter in trained if not name.endswith("bias")]
    biases = [parameter for name, parameter in trained if name.endswith("bias")]
    groups = [{"params": filters, "weight_decay": 1.3e-3}, {"params": biases, "lr": 64 * flags.lr, "weight_decay": 0}]
    return torch.optim.SGD(groups, lr=flags.lr, momentum=0.85, nesterov=True)


def triangle(step, steps, top=0.25):
    at = step / steps
    return 0.2 + 0.8 * at / top if at < top else (1 - at) / (1 - top)


def train(flags, place):
    rank, ranks = place

    def message(line):
        if rank == 0:
            print(line, flush=True)

    images, labels = read(flags.data, "data_batch_*.bin", flags.train_images)
    test_images, test_labels = read(flags.data, "test_batch.bin", flags.test_images)
    test_images = normalised(test_images)
    torch.manual_seed(flags.seed)
    net = Net(flags.width, whitening_filters(normalised(images))).to(memory_format=torch.channels_last)
    padded = normalised(functional.pad(images, (PADDING,) * 4))
    parallel = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True) if ranks > 1 else net
    steps_of_epoch = len(images) // flags.batch
    steps = flags.epochs * steps_of_epoch
    sgd = make_sgd(net, flags)
    rate = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: triangle(step, steps))
    torch.manual_seed(flags.seed * ranks + rank)  # for augmentation, which differs among the ranks
    spent = 0.0
    for epoch in range(flags.epochs):
        begin = time.perf_counter()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(flags.seed + epoch))
        for at in range(0, steps_of_epoch * flags.batch, flags.batch):
            chosen = order[at + rank : at + flags.batch : ranks]
            batch = augmented(padded[chosen]).contiguous(memory_format=torch.channels_last)
            sgd.zero_grad()
            functional.cross_entropy(parallel(batch), labels[chosen], label_smoothing=0.2).backward()
            sgd.step()
            rate.step()
        spent += time.perf_counter() - begin
        accuracy, loss = score(net, test_images, test_labels, place)
        message(f"accuracy {accuracy:.4f} on {len(test_images)} test samples, loss {loss:.3f}, after {spent:.1f} s of training")
        if 0 < flags.target <= accuracy:
            message(f"target {flags.target:.4f} reached in epoch {epoch + 1}, after {spent:.1f} s of training")
            return
    if flags.target > 0:
        message(f"target {flags.target:.4f} not reached")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--lr", type=float, default=0.75)
    for flag, default in (("epochs", 16), ("batch", 500), ("width", 32), ("train-images", 0), ("test-images", 0), ("seed", 1)):
        parser.add_argument("--" + flag, type=int, default=default)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    place = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if flags.batch % place[1] != 0:
        parser.error(f"--batch {flags.batch} cannot be divided among {place[1]} ranks")
    if place[1] > 1:
        dist.init_process_group("gloo")
    train(flags, place)
    if place[1] > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
