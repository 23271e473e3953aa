#!/usr/bin/env python3
"""Steps of ResNet-18 (32x32 images) with LibTorch's modules and Lockstep's DDP, in turn with Python's DistributedDataParallel over Gloo: the
same wheel of PyTorch, initial weights, batches and optimizer, one thread for each rank. Needs a build with -Dtorch=DIR.

bench/peers/libtorch_ddp.py [--build build] [--python PYTHON] [--ranks 2] [--batch 32] [--rounds 7] [--steps 10]

Prints one JSON line. The times are medians over the rounds' medians; `ratio` is Python's time by ours, the median of the rounds' ratios, and
`least` is the shortest step, which a busy machine disturbs less. Ends with an error if the losses of the two differ by more than rounding.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SKIPPED_STEPS = 3  # both arrange their buckets again after the first
BOUND = {"first": 1e-5, "last": 1e-2}  # of losses, relative above 1; rounding grows from step to step
SECONDS_FOR_ONE = 900


def train(rank, folder, ranks, steps, batch):
    """One rank of Python's training. It does what libtorch_step.cpp does; rank 0 writes the line to a file in the folder."""
    import torch
    import torch.distributed as dist
    from torch import nn

    def convolution(inside, outside, kernel, stride):
        return nn.Conv2d(inside, outside, kernel, stride, padding=kernel // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, inside, outside, stride):
            super().__init__()
            self.conv1, self.conv2 = convolution(inside, outside, 3, stride), convolution(outside, outside, 3, 1)
            self.bn1, self.bn2, self.shortcut = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside), nn.Sequential()
            if stride != 1 or inside != outside:
                self.shortcut = nn.Sequential(convolution(inside, outside, 1, stride), nn.BatchNorm2d(outside))

        def forward(self, x):
            return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))

    class ResNet18(nn.Module):
        def __init__(self):
            super().__init__()
            # Weights are drawn in the order in which C++ constructs the members.
            self.conv1, self.bn1, self.fc = convolution(3, 64, 3, 1), nn.BatchNorm2d(64), nn.Linear(512, 10)
            widths = [64, 64, 128, 128, 256, 256, 512, 512]
            sizes = zip([64, *widths], widths, [1, 1, 2, 1, 2, 1, 2, 1])
            self.blocks = nn.Sequential(*(Block(*size) for size in sizes))

        def forward(self, images):
            return self.fc(self.blocks(torch.relu(self.bn1(self.conv1(images)))).mean((2, 3)))

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(ResNet18(), gradient_as_bucket_view=True)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    torch.manual_seed(2 + rank)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    losses, times = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        sgd.step()
        times.append((time.perf_counter() - begin) * 1e3)
        losses.append(loss.item())
    sums = torch.tensor([losses[0], losses[-1]], dtype=torch.float64)
    dist.all_reduce(sums)
    if rank == 0:
        pathlib.Path(folder, "line").write_text(json.dumps({"losses": sums.tolist(), "ms": times, "torch": torch.__version__}))
    dist.barrier()
    dist.destroy_process_group()


def run(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    end = subprocess.run([str(word) for word in command], env=environment, timeout=SECONDS_FOR_ONE, capture_output=True, text=True, check=False)
    if end.returncode != 0:
        sys.exit(f"libtorch_ddp: {command[0]} ended with {end.returncode}:\n{end.stdout}{end.stderr}")
    return end.stdout


def ours(flags):
    steps = flags.steps + SKIPPED_STEPS
    return json.loads(run([flags.build / "launcher/lockrun", "--no-fold", "--no-prefix", "-n", flags.ranks, flags.build / "bench/libtorch_step", steps, flags.batch]))


def theirs(flags):
    with tempfile.TemporaryDirectory() as folder:
        run([flags.python, __file__, "--in", folder, "--ranks", flags.ranks, "--steps", flags.steps, "--batch", flags.batch])
        return json.loads(pathlib.Path(folder, "line").read_text())


def check_losses(a, b):
    for which, mine, python in zip(BOUND, a["losses"], b["losses"]):
        if abs(mine - python) > BOUND[which] * max(1, abs(python)):
            sys.exit(f"libtorch_ddp: the {which} losses differ: {mine} with Lockstep's DDP, {python} with Python's")


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    cli.add_argument("--python", default=sys.executable, help="one with the wheel of PyTorch that the build has")
    cli.add_argument("--ranks", type=int, default=2)
    cli.add_argument("--batch", type=int, default=32, help="images of each rank")
    cli.add_argument("--rounds", type=int, default=7)
    cli.add_argument("--steps", type=int, default=10)
    cli.add_argument("--in", dest="folder", help=argparse.SUPPRESS)
    flags = cli.parse_args()
    if flags.folder:
        import torch.multiprocessing as mp

        mp.spawn(train, args=(flags.folder, flags.ranks, flags.steps + SKIPPED_STEPS, flags.batch), nprocs=flags.ranks)
        return
    flags.build = flags.build.resolve()
    medians, least, version = {"lockstep": [], "python": []}, {"lockstep": [], "python": []}, ""
    for _ in range(flags.rounds):
        found = {"lockstep": ours(flags), "python": theirs(flags)}
        check_losses(found["lockstep"], found["python"])
        version = found["python"]["torch"]
        for name, line in found.items():
            medians[name].append(statistics.median(line["ms"][SKIPPED_STEPS:]))
            least[name].append(min(line["ms"][SKIPPED_STEPS:]))
    ratios = [python / mine for python, mine in zip(medians["python"], medians["lockstep"])]
    line = {"peer": "pytorch-" + version, "model": "resnet18", "ranks": flags.ranks, "batch": flags.batch, "rounds": flags.rounds, "steps": flags.steps}
    line.update({f"{name}_ms": round(statistics.median(values), 2) for name, values in medians.items()})
    line.update(ratio=round(statistics.median(ratios), 3), lowest=round(min(ratios), 3), highest=round(max(ratios), 3))
    line.update({f"{name}_least_ms": round(min(values), 2) for name, values in least.items()})
    line.update(least_ratio=round(min(least["python"]) / min(least["lockstep"]), 3), losses=found["lockstep"]["losses"])
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
