"""The training of bench/save.cpp with PyTorch's dcp.async_save: torchrun --nproc-per-node 2 save_dcp.py --folder DIR --mb 500 --saves 3"""

import argparse
import json
import math
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

STEPS, WARM_UP, BATCH = 12, 3, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--saves", type=int, default=3)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    writers = dist.new_group(backend="gloo")  # in the training's own group the writers' collectives and DDP's wait for each other forever
    width = int(math.sqrt(flags.mb * 1e6 / 12 / 4))
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))
    ddp = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True)
    adam = torch.optim.Adam(ddp.parameters(), lr=1e-4, fused=True)
    inputs, targets = torch.full((BATCH, width), 0.5), torch.zeros(BATCH, width)
    steps = []

    def train(count):
        for _ in range(count):
            begin = time.perf_counter()
            adam.zero_grad()
            nn.functional.mse_loss(ddp(inputs), targets).backward()
            adam.step()
            steps.append((begin, time.perf_counter()))

    train(WARM_UP)
    steps.clear()
    alone, during, calls, writes = [], [], [], []
    for number in range(flags.saves + 1):
        train(STEPS)
        dist.barrier()
        written = []
        begin = time.perf_counter()
        future = dcp.async_save({"model": net.state_dict(), "optimizer": adam.state_dict()}, checkpoint_id=f"{flags.folder}/{number}",
                                process_group=writers)
        end = time.perf_counter()
        future.add_done_callback(lambda _, written=written: written.append(time.perf_counter()))
        train(STEPS)
        future.result()
        while not written:
            time.sleep(0.001)
        if number > 0:  # the first save allocates
            alone += [1e3 * (to - since) for since, to in steps if since < end]
            during += [1e3 * (to - since) for since, to in steps if since >= end and to < written[0]]
            calls.append(1e3 * (end - begin))
            writes.append(1e3 * (written[0] - begin))
        steps.clear()
    if dist.get_rank() == 0:
        print(json.dumps({"program": "pytorch", "step_ms": round(statistics.median(alone), 2),
                          "during_save_ms": round(statistics.median(during), 2) if during else None,
                          "call_ms": round(statistics.median(calls), 1), "write_ms": round(statistics.median(writes))}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
