"""The calls of torch.distributed on the backend "lockstep", on small jobs. Results are exact: sums of small integers."""

import unittest

import lockstep_torch  # noqa: F401: registers the backend
import rank_cases
import torch
import torch.distributed as dist
from rank_cases import Raises, on_ranks

REDUCED = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
MOVED = REDUCED + [torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint64, torch.float8_e4m3fn]


def values(rank, dtype, shape=(3, 4)):
    """Small integers, which differ between ranks and positions."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * (rank + 2) + rank) % 5).reshape(shape).to(dtype)


def cpu_backend():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def maximum():
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape, f"{found} against {expected}"
    assert torch.equal(found.to(torch.complex128), expected.to(torch.complex128)), f"got {found}, expected {expected}"


class Moves(unittest.TestCase):
    @on_ranks(1, 2, 3)
    def test_broadcast_of_every_type(rank, ranks):
        for dtype in MOVED:
            for shape in [(3, 4), (), (0, 2), (1025,)]:
                data = values(rank, dtype, shape)
                dist.broadcast(data, ranks - 1)
                same(data, values(ranks - 1, dtype, shape))

    @on_ranks(2)
    def test_broadcast_of_views(rank, ranks):
        whole = torch.zeros(4, 6)
        part = whole.t()[1:5:2]
        part.copy_(values(rank, torch.float32, part.shape))
        dist.broadcast(part, 1)
        same(part, values(1, torch.float32, part.shape))
        assert whole.count_nonzero() == part.count_nonzero()
        conjugate = torch.full((3,), complex(rank, 1)).conj()  # dist.broadcast() refuses it
        cpu_backend().broadcast([conjugate], dist.BroadcastOptions()).wait()
        same(conjugate.resolve_conj(), torch.full((3,), complex(0, -1)))

    @on_ranks(2, 3)
    def test_all_gather(rank, ranks):
        for dtype in MOVED:
            expected = [values(r, dtype) for r in range(ranks)]
            outputs = [torch.empty(3, 4, dtype=dtype) for _ in range(ranks)]
            dist.all_gather(outputs, values(rank, dtype))
            for found, value in zip(outputs, expected):
                same(found, value)
            flat = torch.empty(ranks * 3, 4, dtype=dtype)
            dist.all_gather_into_tensor(flat, values(rank, dtype))
            same(flat, torch.cat(expected))
            dist.all_gather(list(flat.zero_().chunk(ranks)), values(rank, dtype))  # parts of one memory
            same(flat, torch.cat(expected))

    @on_ranks(3)
    def test_all_gather_of_unequal_parts(rank, ranks):
        outputs = [torch.empty(r, 2) for r in range(ranks)]
        dist.all_gather(outputs, values(rank, torch.float32, (rank, 2)))
        for r in range(ranks):
            same(outputs[r], values(r, torch.float32, (r, 2)))

    @on_ranks(2, 3)
    def test_all_gather_into_views(rank, ranks):
        whole = torch.zeros(4, 3, ranks)
        dist.all_gather([whole[:, :, r].t() for r in range(ranks)], values(rank, torch.float32))
        for r in range(ranks):
            same(whole[:, :, r].t(), values(r, torch.float32))

    @on_ranks(2, 3)
    def test_all_gather_coalesced(rank, ranks):
        inputs = [values(rank, torch.float32), values(rank, torch.float32, (2,))]
        outputs = [[torch.empty_like(i) for i in inputs] for _ in range(ranks)]
        dist.all_gather_coalesced(outputs, inputs)
        for r in range(ranks):
            same(outputs[r][0], values(r, torch.float32))
            same(outputs[r][1], values(r, torch.float32, (2,)))

    @on_ranks(2, 3)
    def test_gather_and_scatter(rank, ranks):
        for root in range(ranks):
            gathered = [torch.empty(3, 4) for _ in range(ranks)] if rank == root else None
            dist.gather(values(rank, torch.float32), gathered, dst=root)
            for r, found in enumerate(gathered or []):
                same(found, values(r, torch.float32))
            scattered = torch.empty(3, 4)
            dist.scatter(scattered, [values(r + 1, torch.float32) for r in range(ranks)] if rank == root else None, src=root)
            same(scattered, values(rank + 1, torch.float32))

    @on_ranks(2, 3)
    def test_all_to_all(rank, ranks):
        flat = torch.empty(ranks * 2, 3)
        dist.all_to_all_single(flat, values(rank, torch.float32, (ranks * 2, 3)))
        same(flat, torch.cat([values(r, torch.float32, (ranks * 2, 3))[2 * rank : 2 * rank + 2] for r in range(ranks)]))
        outputs = [torch.empty(r + rank, 2, dtype=torch.bool) for r in range(ranks)]
        dist.all_to_all(outputs, [values(rank, torch.bool, (rank + r, 2)) for r in range(ranks)])
        for r in range(ranks):
            same(outputs[r], values(r, torch.bool, (rank + r, 2)))

    @on_ranks(2, 3)
    def test_all_to_all_with_splits(rank, ranks):
        sizes = [rank + r for r in range(ranks)]
        output = torch.empty(sum(sizes), 2, dtype=torch.complex64)
        dist.all_to_all_single(output, torch.full((sum(sizes), 2), complex(rank, 1)), sizes, sizes)
        same(output, torch.cat([torch.full((size, 2), complex(r, 1)) for r, size in enumerate(sizes)]))

    @on_ranks(2, 3)
    def test_objects(rank, ranks):
        found = [None] * ranks
        dist.all_gather_object(found, {"rank": rank, "text": "x" * rank * 1000})
        assert found == [{"rank": r, "text": "x" * r * 1000} for r in range(ranks)]
        objects = [rank, f"from {rank}"]
        dist.broadcast_object_list(objects, src=1)
        assert objects == [1, "from 1"]
        taken = [None]
        dist.scatter_object_list(taken, list(range(ranks)) if rank == 0 else None, src=0)
        assert taken == [rank]
        given = [None] * ranks if rank == 1 else None
        dist.gather_object(rank, given, dst=1)
        assert given is None or given == list(range(ranks))


class Reductions(unittest.TestCase):
    @on_ranks(1, 2, 3)
    def test_all_reduce_of_every_type(rank, ranks):
        for dtype in REDUCED:
            stacked = torch.stack([values(r, torch.float64) for r in range(ranks)])
            for op, expected in [
                (dist.ReduceOp.SUM, stacked.sum(0)),
                (dist.ReduceOp.PRODUCT, stacked.prod(0)),
                (dist.ReduceOp.MIN, stacked.amin(0)),
                (dist.ReduceOp.MAX, stacked.amax(0)),
            ]:
                data = values(rank, dtype)
                dist.all_reduce(data, op)
                same(data, expected.to(dtype))

    @on_ranks(2)
    def test_average(rank, ranks):
        for dtype in [torch.float32, torch.float64, torch.bfloat16, torch.complex64]:
            data = torch.full((5,), 2.0 * rank, dtype=dtype)
            dist.all_reduce(data, dist.ReduceOp.AVG)
            same(data, torch.ones(5, dtype=dtype))

    @on_ranks(2, 3)
    def test_bits_and_booleans(rank, ranks):
        for dtype in [torch.uint8, torch.int16, torch.int32, torch.int64]:
            for op, name in [(dist.ReduceOp.BAND, "and"), (dist.ReduceOp.BOR, "or"), (dist.ReduceOp.BXOR, "xor")]:
                expected = values(0, dtype)
                for r in range(1, ranks):
                    expected = getattr(torch, f"bitwise_{name}")(expected, values(r, dtype))
                data = values(rank, dtype)
                dist.all_reduce(data, op)
                same(data, expected)
        own = torch.tensor([True, rank == 0, False])
        for op, expected in [(dist.ReduceOp.SUM, [True, True, False]), (dist.ReduceOp.MIN, [True, False, False]), (dist.ReduceOp.BXOR, [ranks % 2 == 1, True, False])]:
            data = own.clone()
            dist.all_reduce(data, op)
            same(data, torch.tensor(expected))

    @on_ranks(2)
    def test_integers_that_wrap(rank, ranks):
        for dtype in [torch.int16, torch.uint16]:
            data = torch.full((3,), torch.iinfo(dtype).max).to(dtype)
            dist.all_reduce(data)
            same(data, torch.full((3,), torch.iinfo(dtype).max * 2).to(dtype))

    @on_ranks(2)
    def test_complex_sums(rank, ranks):
        data = torch.full((2, 3), complex(rank, 1 + rank))
        dist.all_reduce(data)
        same(data, torch.full((2, 3), complex(1, 3)))
        conjugate = torch.full((2, 3), complex(rank, 1 + rank)).conj()
        cpu_backend().allreduce([conjugate]).wait()
        same(conjugate.resolve_conj(), torch.full((2, 3), complex(1, -3)))
        with Raises(RuntimeError, "MAX of ComplexFloat", "SUM, AVG and PREMUL_SUM"):
            cpu_backend().allreduce([data], maximum())

    @on_ranks(2)
    def test_premultiplied_sum(rank, ranks):
        data = torch.full((5,), 4.0)
        dist.all_reduce(data, dist._make_nccl_premul_sum(0.5 if rank == 0 else 2.0))
        same(data, torch.full((5,), 10.0))
        data = torch.full((5,), 4.0)
        dist.all_reduce(data, dist._make_nccl_premul_sum(torch.tensor([0.25])))
        same(data, torch.full((5,), 2.0))

    @on_ranks(2, 3)
    def test_reduce(rank, ranks):
        for root in range(ranks):
            data = values(rank, torch.float32)
            dist.reduce(data, root)
            same(data, sum(values(r, torch.float32) for r in range(ranks)) if rank == root else values(rank, torch.float32))

    @on_ranks(2, 3)
    def test_reduce_scatter(rank, ranks):
        for dtype in [torch.float32, torch.int16, torch.int64]:
            inputs = [values(rank + r, dtype) for r in range(ranks)]
            expected = sum(values(s + rank, dtype) for s in range(ranks)).to(dtype)
            output = torch.empty(3, 4, dtype=dtype)
            dist.reduce_scatter(output, inputs)
            same(output, expected)
            dist.reduce_scatter_tensor(output.zero_(), torch.cat(inputs))
            same(output, expected)
        output = torch.empty(rank, 2)
        dist.reduce_scatter(output, [torch.full((r, 2), float(rank)) for r in range(ranks)])
        same(output, torch.full((rank, 2), float(sum(range(ranks)))))

    @on_ranks(2, 3)
    def test_coalesced(rank, ranks):
        tensors = [values(rank, torch.float32), values(rank, torch.float32, (7,)).repeat(2, 1).t()]
        dist.all_reduce_coalesced(tensors)
        same(tensors[0], sum(values(r, torch.float32) for r in range(ranks)))
        group = dist.group.WORLD
        with dist._coalescing_manager(group):
            first, second = values(rank, torch.float32), values(rank, torch.float32, (5,))
            dist.all_reduce(first)
            dist.all_reduce(second)
        same(second, sum(values(r, torch.float32, (5,)) for r in range(ranks)))
        outputs = [torch.empty(ranks * 3, 4) for _ in range(2)]
        with dist._coalescing_manager(group, async_ops=True) as manager:
            for i in range(2):
                dist.all_gather_into_tensor(outputs[i], values(rank + i, torch.float32))
        manager.wait()
        for i in range(2):
            same(outputs[i], torch.cat([values(r + i, torch.float32) for r in range(ranks)]))
        parts = [torch.empty(3, 4) for _ in range(2)]
        with dist._coalescing_manager(group):
            for i in range(2):
                dist.reduce_scatter_tensor(parts[i], torch.cat([values(r + i, torch.float32) for r in range(ranks)]))
        for i in range(2):
            same(parts[i], ranks * values(rank + i, torch.float32))

    @on_ranks(2)
    def test_functional_collectives(rank, ranks):
        import torch.distributed._functional_collectives as functional

        same(functional.all_reduce(values(rank, torch.float32), "sum", dist.group.WORLD) + 0, values(0, torch.float32) + values(1, torch.float32))
        gathered = functional.all_gather_tensor(values(rank, torch.float32), 0, dist.group.WORLD)
        same(gathered + 0, torch.cat([values(r, torch.float32) for r in range(ranks)]))


class Refusals(unittest.TestCase):
    @on_ranks(2)
    def test_refused_by_name(rank, ranks):
        floats, whole = torch.ones(3), torch.ones(3, dtype=torch.int32)
        for op, tensor, *parts in [
            (dist.ReduceOp.AVG, whole, "AVG of Int", "floating point"),
            (dist.ReduceOp.BAND, floats, "BAND of Float", "integers"),
            (dist.ReduceOp.BXOR, floats, "BXOR of Float"),
            (dist.ReduceOp.MAX, torch.ones(3, dtype=torch.uint64), "MAX of UInt64"),
            (dist.ReduceOp.SUM, torch.ones(3).to(torch.float8_e5m2), "SUM of Float8_e5m2"),
        ]:
            with Raises(RuntimeError, f"all_reduce on rank {rank}", *parts):
                dist.all_reduce(tensor, op)
        backend = cpu_backend()
        with Raises(RuntimeError, "got a tensor on meta", "copy the tensor to the CPU"):
            backend.allreduce([torch.ones(3, device="meta")])
        with Raises(RuntimeError, "2 times the elements"):
            backend._allgather_base(torch.empty(5), torch.empty(3))
        with Raises(RuntimeError, "got 2 tensors; expected one"):
            backend.broadcast([floats, floats], dist.BroadcastOptions())
        with Raises(RuntimeError, "split sizes"):
            backend.alltoall_base(torch.empty(3), torch.empty(3), [1, 1], [1, 2])
        dist.all_reduce(floats)  # none of these counted
        same(floats, torch.full((3,), 2.0))

    @on_ranks(2)
    def test_layouts_of_tensors(rank, ranks):
        with Raises(RuntimeError, "all_reduce on rank", "Sparse", "to_dense()"):
            dist.all_reduce(torch.eye(3).to_sparse())
        backend, options = cpu_backend(), dist.BroadcastOptions()
        for tensor, name in [
            (torch.eye(3).to_sparse(), "Sparse"),
            (torch.eye(3).to_sparse_csr(), "SparseCsr"),
            (torch.ones(3, 3).to_mkldnn(), "Mkldnn"),
            (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
            (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
        ]:
            with Raises(RuntimeError, f"broadcast on rank {rank}", f"the layout {name}", "dense"):
                backend.broadcast([tensor], options)
        shared = torch.ones(1).expand(3)
        for call in [
            lambda: dist.all_reduce(shared),
            lambda: dist.recv(shared, 1 - rank),
            lambda: dist.all_gather_into_tensor(torch.ones(1).expand(6), shared),
        ]:
            with Raises(RuntimeError, f"on rank {rank}", "share memory", "contiguous()"):
                call()
        for given in [shared, torch._efficientzerotensor(3)]:  # inputs may be both
            gathered = torch.full((6,), 2.0)
            dist.all_gather_into_tensor(gathered, given)
            same(gathered, given.repeat(2) + 0)

    @on_ranks(2)
    def test_name_and_options(rank, ranks):
        assert dist.get_backend() == "lockstep"
        backend = cpu_backend()
        assert backend.name() == "lockstep" and backend.supports_coalescing
        assert dist.distributed_c10d._get_default_timeout("lockstep") is not None
        before = dist.group.WORLD._get_sequence_number_for_group()
        dist.barrier()
        assert dist.group.WORLD._get_sequence_number_for_group() == before + 1


if __name__ == "__main__":
    rank_cases.main("__main__")
