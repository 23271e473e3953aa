"""Trains tests/torch's SmallConv with Python's DistributedDataParallel over Gloo, for tests/torch/python_ddp_test.cpp.

python_ddp.py WEIGHTS FOLDER RANKS STEPS

WEIGHTS has the parameters' float32 values, one after the other in the order of named_parameters(). Writes a line with each step's
loss to FOLDER/<rank>.
"""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SmallConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x))).flatten(1))


def waves(sizes, first):
    count = 1
    for size in sizes:
        count *= size
    return torch.sin(torch.arange(count, dtype=torch.float64) * 0.7 + first).to(torch.float32).reshape(sizes)


def train(rank, weights, folder, ranks, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    model = SmallConv()
    values = torch.from_file(weights, size=sum(p.numel() for p in model.parameters()))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(values[: parameter.numel()].reshape(parameter.shape))
            values = values[parameter.numel() :]
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with open(f"{folder}/{rank}", "w") as out:
        for step in range(steps):
            sgd.zero_grad()
            labels = (torch.arange(6) * 3 + rank + step) % 10
            loss = nn.functional.cross_entropy(ddp(waves([6, 3, 4, 4], 100.0 * rank + 3.0 * step)), labels)
            loss.backward()
            sgd.step()
            out.write(f"{loss.item():.9g}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), nprocs=int(sys.argv[3]))
