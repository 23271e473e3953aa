#!/usr/bin/env python3
"""The tutorial's network and recipe of `examples/cifar10 --recipe classic` with PyTorch, to compare accuracies on the same images.

cifar10_classic.py --data DIR [--max-steps N] [--eval-every N] [--seed N]     DIR contains data_batch_*.bin and test_batch.bin

128 images a step: random 24x24 crop, flip, brightness +-63, contrast 0.2 to 1.8, each image standardised. Weights from truncated normal
distributions, SGD from 0.1 without momentum, divided by 10 every int(batches per epoch x 350) steps, 0.004 x l2_loss of the two hidden
layers, moving averages of 0.9999, with which the central crops of the test images are evaluated. Prints a line for each evaluation. The
random numbers are PyTorch's.
"""

import argparse
import pathlib
import time

import numpy
import torch
from torch import nn
from torch.nn import functional

BATCH = 128


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LocalResponseNorm(9, 0.001, 0.75, 1.0)
        self.conv1, self.conv2 = nn.Conv2d(3, 64, 5, padding=2), nn.Conv2d(64, 64, 5, padding=2)
        self.local3, self.local4, self.softmax_linear = nn.Linear(2304, 384), nn.Linear(384, 192), nn.Linear(192, 10)
        initial = ((self.conv1, 0.05, 0), (self.conv2, 0.05, 0.1), (self.local3, 0.04, 0.1), (self.local4, 0.04, 0.1),
                   (self.softmax_linear, 1 / 192, 0))
        for layer, deviation, bias in initial:
            nn.init.trunc_normal_(layer.weight, 0, deviation, -2 * deviation, 2 * deviation)
            nn.init.constant_(layer.bias, bias)

    def forward(self, x):
        def halved(y):  # TensorFlow's SAME adds the odd row and column at the end
            return functional.max_pool2d(functional.pad(y, (0, 1, 0, 1), value=float("-inf")), 3, 2)

        x = self.norm(halved(functional.relu(self.conv1(x))))
        x = halved(self.norm(functional.relu(self.conv2(x))))
        x = functional.relu(self.local4(functional.relu(self.local3(x.flatten(1)))))
        return self.softmax_linear(x)

    def weight_loss(self):
        return 0.004 * sum(layer.weight.square().sum() / 2 for layer in (self.local3, self.local4))


def read(folder, pattern):
    records = numpy.concatenate([numpy.fromfile(path, numpy.uint8).reshape(-1, 3073) for path in sorted(pathlib.Path(folder).glob(pattern))])
    return torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()).float(), torch.from_numpy(records[:, 0].astype(numpy.int64))


def standardised(images):
    flat = images.flatten(1)
    deviation = flat.std(1, unbiased=False).clamp(min=flat.shape[1] ** -0.5)
    return (images - flat.mean(1)[:, None, None, None]) / deviation[:, None, None, None]


def distorted(images):
    count = len(images)
    corners = torch.randint(0, 9, (count, 2)).tolist()
    images = torch.stack([image[:, y:y + 24, x:x + 24] for image, (y, x) in zip(images, corners)])
    flipped = torch.rand(count) < 0.5
    images[flipped] = images[flipped].flip(3)
    images = images + (torch.rand(count, 1, 1, 1) * 126 - 63)
    mean = images.mean((2, 3), keepdim=True)
    return standardised((images - mean) * (0.2 + 1.6 * torch.rand(count, 1, 1, 1)) + mean)


def accuracy(net, images, labels):
    with torch.no_grad():
        parts = zip(images.split(500), labels.split(500))
        return sum((net(part).argmax(1) == of_part).sum().item() for part, of_part in parts) / len(labels)


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--data", required=True)
    cli.add_argument("--max-steps", type=int, default=10000)
    cli.add_argument("--eval-every", type=int, default=1000)
    cli.add_argument("--seed", type=int, default=1)
    args = cli.parse_args()
    torch.manual_seed(args.seed)
    torch.set_flush_denormal(True)  # moving averages of dead weights would slow it down several times
    images, labels = read(args.data, "data_batch_*.bin")
    test_images, test_labels = read(args.data, "test_batch.bin")
    test_images = standardised(test_images[:, :, 4:28, 4:28])
    net, averages = Net().to(memory_format=torch.channels_last), Net().to(memory_format=torch.channels_last)
    averages.load_state_dict(net.state_dict())
    batches = len(images) / BATCH
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    order, begin = torch.empty(0, dtype=torch.long), time.time()
    for step in range(1, args.max_steps + 1):
        if len(order) < BATCH:
            order = torch.cat([order, torch.randperm(len(images))])
        taken, order = order[:BATCH], order[BATCH:]
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.1 ** ((step - 1) // int(batches * 350))
        optimizer.zero_grad()
        inputs = distorted(images[taken]).contiguous(memory_format=torch.channels_last)
        loss = functional.cross_entropy(net(inputs), labels[taken]) + net.weight_loss()
        loss.backward()
        optimizer.step()
        decay = min(0.9999, (1 + step) / (10 + step))
        with torch.no_grad():
            for average, parameter in zip(averages.parameters(), net.parameters()):
                average.lerp_(parameter, 1 - decay)
        if step % args.eval_every == 0:
            print(f"step {step}: loss {loss.item():.2f}, accuracy {accuracy(averages, test_images, test_labels):.4f}, "
                  f"{time.time() - begin:.0f} s", flush=True)


main()
