"""Trainings on the backend "lockstep" and on Gloo, which must have the same losses.

Sums of two ranks' values are the same bits in either order, so the losses are compared bit for bit, except with three
ranks.
"""

import functools
import os
import unittest

import lockstep_torch  # noqa: F401: registers the backend
import rank_cases
import torch
import torch.distributed as dist
from rank_cases import Raises, init, on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WORDS, LENGTH = 5, 31, 12


class Transformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(LENGTH, width))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, WORDS)

    def forward(self, text):
        hidden = self.words(text) + self.places
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def train(model, optimizer, rank, steps=STEPS):
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        text = (torch.randint(0, WORDS, (4, 1), generator=data) + torch.arange(LENGTH)) % WORDS  # counts
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), (text + 1).flatten() % WORDS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def on_both(rank, ranks, folder, training):
    """The losses of `training` on Gloo and on ours."""
    found = {}
    for backend in ("gloo", "lockstep"):
        torch.manual_seed(1)
        os.makedirs(f"{folder}/{backend}", exist_ok=True)
        init(rank, ranks, f"{folder}/{backend}", backend=backend)
        found[backend] = training()
        dist.barrier()
        dist.destroy_process_group()
    assert found["gloo"][1:].min() < found["gloo"][0], found
    return found["gloo"], found["lockstep"]


def ddp(rank, **options):
    model = DistributedDataParallel(Transformer(), **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


class Training(unittest.TestCase):
    @on_ranks(2, joins=False)
    def test_ddp(rank, ranks, folder):
        gloo, ours = on_both(rank, ranks, folder, lambda: train(*ddp(rank, bucket_cap_mb=0.02), rank))
        assert torch.equal(gloo, ours), (gloo, ours)

    @on_ranks(3, joins=False)
    def test_ddp_of_three_ranks(rank, ranks, folder):
        gloo, ours = on_both(rank, ranks, folder, lambda: train(*ddp(rank, gradient_as_bucket_view=True, static_graph=True), rank))
        assert torch.allclose(gloo, ours, rtol=1e-4), (gloo, ours)

    @on_ranks(2, joins=False)
    def test_comm_hooks(rank, ranks, folder):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        def training(hook, state):
            model, optimizer = ddp(rank)
            model.register_comm_hook(state() if state else None, hook)
            return train(model, optimizer, rank)

        for index, (hook, state) in enumerate([
            (default_hooks.allreduce_hook, None),
            (default_hooks.fp16_compress_hook, None),
            (powerSGD_hook.powerSGD_hook, lambda: powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)),
        ]):
            gloo, ours = on_both(rank, ranks, f"{folder}/{index}", functools.partial(training, hook, state))
            assert torch.allclose(gloo, ours, rtol=1e-3), (hook, gloo, ours)

    @on_ranks(2, joins=False)
    def test_uneven_inputs(rank, ranks, folder):
        def training():
            model, optimizer = ddp(rank)
            with model.join():
                losses = train(model, optimizer, rank, STEPS + 2 * rank)
            return losses[:STEPS]

        gloo, ours = on_both(rank, ranks, folder, training)
        assert torch.equal(gloo, ours), (gloo, ours)

    @on_ranks(2, joins=False)
    def test_zero_redundancy_optimizer(rank, ranks, folder):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        def training():
            model = DistributedDataParallel(Transformer())
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
            losses = train(model, optimizer, rank)
            optimizer.consolidate_state_dict(to=0)
            assert rank != 0 or optimizer.state_dict()["state"]
            return losses

        gloo, ours = on_both(rank, ranks, folder, training)
        assert torch.equal(gloo, ours), (gloo, ours)

    @on_ranks(2, joins=False)
    def test_fully_shard(rank, ranks, folder):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        def training():
            mesh = init_device_mesh("cpu", (ranks,))
            model = Transformer()
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            losses = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), rank)
            whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
            assert rank != 0 or whole["head.weight"].shape == (WORDS, 32)
            return losses

        gloo, ours = on_both(rank, ranks, folder, training)
        assert torch.allclose(gloo, ours, rtol=1e-5), (gloo, ours)

    @on_ranks(2, joins=False)
    def test_sync_of_buffers_and_unused_parameters(rank, ranks, folder):
        class Sometimes(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.extra, self.norm = Transformer(), nn.Linear(WORDS, WORDS), nn.BatchNorm1d(LENGTH)
                self.calls = 0

            def forward(self, text):
                self.calls += 1
                hidden = self.norm(self.inner(text))
                return self.extra(hidden) if self.calls % 2 == 0 else hidden

        def training():
            model = DistributedDataParallel(Sometimes(), find_unused_parameters=True)
            return train(model, torch.optim.SGD(model.parameters(), lr=0.1), rank)

        gloo, ours = on_both(rank, ranks, folder, training)
        assert torch.equal(gloo, ours), (gloo, ours)

    @on_ranks(2)
    def test_sparse_gradients_are_refused(rank, ranks):
        model = DistributedDataParallel(nn.Embedding(WORDS, 4, sparse=True))
        with Raises(RuntimeError, f"all_reduce on rank {rank}", "Sparse", "to_dense()"):
            model(torch.arange(3)).sum().backward()


if __name__ == "__main__":
    rank_cases.main("__main__")
