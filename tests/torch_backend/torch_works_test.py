"""Works and their futures: who waits for whom, at which time, and what happens to them when the group ends."""

import datetime
import os
import sys
import unittest

import lockstep_torch  # noqa: F401: registers the backend
import rank_cases
import torch
import torch.distributed as dist
from rank_cases import Raises, init, on_ranks

LONG = 8 << 20  # floats of a message that is longer than what lies between two ranks


class Works(unittest.TestCase):
    @on_ranks(1)
    def test_futures_of_works_that_are_dropped(rank, ranks):
        """The last references to their tensors end on another thread, which needs Python's lock."""
        sys.setswitchinterval(1e-5)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        for _ in range(1000):
            backend._start_coalescing()
            dist.all_reduce(torch.ones(4), async_op=True)
            dist.all_reduce(torch.ones(4), async_op=True)
            backend._end_coalescing().get_future()

    @on_ranks(2)
    def test_synchronize_right_after_the_call(rank, ranks):
        for _ in range(50):
            gathered = torch.empty(2 * 65536)
            dist.all_gather_into_tensor(gathered, torch.full((65536,), float(rank)), async_op=True).synchronize()
            assert gathered[0] == 0 and gathered[-1] == 1

    @on_ranks(2)
    def test_a_timeout_before_a_worker_has_begun(rank, ranks):
        data = torch.ones(4)
        if rank == 0:
            work = dist.all_reduce(data, async_op=True)
            with Raises(RuntimeError, "is not done after 100 ms"):
                work.wait(datetime.timedelta(milliseconds=100))
            dist.send(torch.ones(1), 1)
            work.wait(datetime.timedelta(days=100000))
        else:
            dist.recv(torch.empty(1), 0)  # rank 0 has waited in vain
            dist.all_reduce(data)
        assert data.sum() == 8

    @on_ranks(2, joins=False)
    def test_futures_after_the_end(rank, ranks, folder):
        init(rank, ranks, folder)
        message = dist.isend(torch.ones(2), 1) if rank == 0 else dist.irecv(torch.empty(2), 0)
        message.wait()
        dist.destroy_process_group()
        assert message.get_future().done()

    @on_ranks(2)
    def test_split_sizes_on_one_rank_alone(rank, ranks):
        received = torch.empty(4)
        splits = [2, 2] if rank == 1 else None
        dist.all_to_all_single(received, torch.arange(4.0) + 10 * rank, splits, splits)
        assert received.tolist() == ([0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13])

    @on_ranks(2)
    def test_an_invalid_call_does_not_count_as_a_failure_of_the_group(rank, ranks):
        data = torch.ones(8)
        with Raises(RuntimeError):
            dist.all_gather_into_tensor(data[:4], data[1:3])  # they overlap in part
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
        dist.all_reduce(data)


class LongMessages(unittest.TestCase):
    @on_ranks(2)
    def test_while_the_sender_is_in_another_group(rank, ranks):
        group, data = dist.new_group([0, 1]), torch.ones(LONG)
        if rank == 0:
            work = dist.isend(data, 1, group=group)
            dist.barrier()
            work.wait()
        else:
            dist.recv(data, 0, group=group)
            dist.barrier()

    @on_ranks(2)
    def test_that_follow_a_collective_which_has_begun(rank, ranks):
        values, data = torch.ones(4), torch.ones(LONG)
        if rank == 0:
            collective = dist.all_reduce(values, async_op=True)
            message = dist.isend(data, 1)
            collective.wait()
            message.wait()
        else:
            dist.recv(data, 0)
            dist.all_reduce(values)

    @on_ranks(2, joins=False)
    def test_a_forked_child_leaves_them_to_its_parent(rank, ranks, folder):
        init(rank, ranks, folder)
        if rank == 0:
            work = dist.isend(torch.ones(LONG), 1)
            child = os.fork()
            if child == 0:
                try:
                    with Raises(RuntimeError, "wait() on rank 0", "which has forked this one"):
                        work.wait()
                    dist.destroy_process_group()
                    os.makedirs(f"{folder}/child")
                    init(0, 1, f"{folder}/child")
                    dist.all_reduce(torch.ones(2))
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            work.wait()
        else:
            data = torch.zeros(LONG)
            dist.recv(data, 0)
            assert data.sum() == LONG
        dist.destroy_process_group()


if __name__ == "__main__":
    rank_cases.main("__main__")
