#!/usr/bin/env python3
"""examples/resnet's network, data and recipe with PyTorch, to compare accuracies on the same images.

resnet_cifar10.py --data DIR [--epochs N] [--train-images N] [--test-images N] [--seed N]     DIR contains data_batch_*.bin and test_batch.bin

Network and recipe are those of examples/resnet.cpp: option-A shortcuts, convolutions by Kaiming's normal fan out, padding by 4 black
pixels, a random crop, a flip, each image standardised separately; SGD with momentum 0.9 and weight decay 1e-4, the learning rate divided by
10 at half and at three quarters of the steps. One process trains on entire batches, so its batch norms use statistics of 128 images, while
two ranks use 64 each. The random numbers are PyTorch's.
"""

import argparse
import pathlib

import numpy
import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.stride, self.extra = outside // inside, outside - inside
        self.conv1 = nn.Conv2d(inside, outside, 3, self.stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)

    def forward(self, x):
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        if self.stride > 1:
            x = functional.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.extra // 2, self.extra // 2))
        return functional.relu(y + x)


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inside = 16
    for outside in (16, 32, 64):
        for _ in range(3):
            layers.append(Residual(inside, outside))
            inside = outside
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def read(folder, pattern, count):
    records = numpy.concatenate([numpy.fromfile(path, numpy.uint8).reshape(-1, 3073) for path in sorted(pathlib.Path(folder).glob(pattern))])
    records = records[:count] if count else records
    return torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()).float(), torch.from_numpy(records[:, 0].astype(numpy.int64))


def standardised(images):
    flat = images.flatten(1)
    deviation = flat.std(1, unbiased=False).clamp(min=flat.shape[1] ** -0.5)
    return (images - flat.mean(1)[:, None, None, None]) / deviation[:, None, None, None]


def augmented(images):
    padded = functional.pad(images, (4, 4, 4, 4))
    out = torch.empty_like(images)
    for i, image in enumerate(padded):
        top, left = torch.randint(0, 9, (2,)).tolist()
        crop = image[:, top:top + 32, left:left + 32]
        out[i] = crop.flip(2) if torch.rand(()) < 0.5 else crop
    return out


def accuracy(net, images, labels):
    net.eval()
    with torch.no_grad():
        right = sum((net(standardised(images[at:at + 250])).argmax(1) == labels[at:at + 250]).sum().item() for at in range(0, len(images), 250))
    net.train()
    return right / len(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    for flag, default in (("--epochs", 20), ("--batch", 128), ("--train-images", 0), ("--test-images", 0), ("--seed", 1)):
        parser.add_argument(flag, type=int, default=default)
    flags = parser.parse_args()
    torch.manual_seed(flags.seed)
    images, labels = read(flags.data, "data_batch_*.bin", flags.train_images)
    test_images, test_labels = read(flags.data, "test_batch.bin", flags.test_images)
    net = resnet20()
    steps = flags.epochs * (len(images) // flags.batch)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    rate = torch.optim.lr_scheduler.MultiStepLR(sgd, [steps // 2, steps * 3 // 4])
    for epoch in range(flags.epochs):
        order = torch.randperm(len(images))
        for at in range(0, len(images) - flags.batch + 1, flags.batch):
            chosen = order[at:at + flags.batch]
            loss = functional.cross_entropy(net(standardised(augmented(images[chosen]))), labels[chosen])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            rate.step()
        print(f"epoch {epoch + 1}: accuracy {accuracy(net, test_images, test_labels):.4f} on {len(test_images)} test samples", flush=True)


if __name__ == "__main__":
    main()
