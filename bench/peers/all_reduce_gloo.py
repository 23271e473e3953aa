"""Gloo's all-reduce through PyTorch by message size, measured as bench/all_reduce measures ours.

torchrun --standalone --nproc-per-node 2 all_reduce_gloo.py 4 1024 26214400
"""

import json
import sys
import time

import torch
import torch.distributed as dist

WARM_UP = 3


def rounds_for(size):
    return min(max((64 << 20) // max(size, 4096), 7), 2000)


def time_one(values):
    """Seconds of the slowest rank for one float sum in place."""
    values.fill_(1)
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(values)
    seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def main(sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    for size in sizes:
        values = torch.empty(max(1, size // 4))
        samples = sorted([time_one(values) for _ in range(WARM_UP + rounds_for(size))][WARM_UP:])
        p50, p99 = samples[len(samples) // 2], samples[len(samples) * 99 // 100]
        algbw = size / p50 / 1e9
        if dist.get_rank() == 0:
            line = {
                "peer": "gloo",
                "ranks": ranks,
                "bytes": size,
                "p50_us": round(p50 * 1e6, 2),
                "p99_us": round(p99 * 1e6, 2),
                "algbw_gbps": round(algbw, 3),
                "busbw_gbps": round(algbw * 2 * (ranks - 1) / ranks, 3),
            }
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
