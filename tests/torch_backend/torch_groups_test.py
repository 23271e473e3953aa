"""Asynchronous works, messages, sub-groups and failures of the backend "lockstep"."""

import datetime
import os
import signal
import time
import traceback
import unittest

import lockstep_torch  # noqa: F401: registers the backend
import rank_cases
import torch
import torch.distributed as dist
from rank_cases import Raises, init, on_ranks


class Asynchronous(unittest.TestCase):
    @on_ranks(2, 3)
    def test_works_and_futures(rank, ranks):
        tensors = [torch.full((1000,), float(rank + i)) for i in range(20)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        futures = [w.get_future() for w in works[10:]]
        for work in works[:10]:
            assert work.wait() and work.is_completed() and work.is_success()
        for i, future in enumerate(futures):
            (found,) = future.wait()
            assert found.data_ptr() == tensors[10 + i].data_ptr()
        for i, tensor in enumerate(tensors):
            assert torch.equal(tensor, torch.full((1000,), float(sum(r + i for r in range(ranks)))))
        assert works[0].get_future().wait()[0] is not None  # asked for afterwards

    @on_ranks(2)
    def test_callbacks(rank, ranks):
        data = torch.full((8,), float(rank + 1))
        chained = dist.all_reduce(data, async_op=True).get_future().then(lambda f: f.value()[0] / ranks)
        assert torch.equal(chained.wait(), torch.full((8,), 1.5))

    @on_ranks(2)
    def test_callback_that_waits_for_collectives(rank, ranks):
        """As PowerSGD's hook does. Ten at a time would take all workers if they were few."""

        def again(future):
            (value,) = future.value()
            dist.all_reduce(value, async_op=True).wait()
            return dist.all_reduce(value, async_op=True).get_future().wait()[0]

        for _ in range(10):
            data = torch.ones(4)
            chained = dist.all_reduce(data, async_op=True).get_future().then(again)
            assert torch.equal(chained.wait(), torch.full((4,), 8.0))

    @on_ranks(2)
    def test_error_in_a_callback(rank, ranks):
        def fail(_):
            raise ValueError("of the callback")

        chained = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(fail)
        with Raises(Exception, "of the callback"):
            chained.wait()
        dist.barrier()

    @on_ranks(2)
    def test_views_are_written_when_done(rank, ranks):
        whole = torch.zeros(4, 4)
        whole[:, 1] = rank + 1.0
        dist.all_reduce(whole[:, 1], async_op=True).get_future().wait()
        assert torch.equal(whole[:, 1], torch.full((4,), 3.0)) and whole.sum() == 12

    @on_ranks(2)
    def test_wait_with_a_timeout(rank, ranks):
        if rank == 1:
            time.sleep(1)
        data = torch.ones(4)
        work = dist.all_reduce(data, async_op=True)
        if rank == 0:
            time.sleep(0.2)  # a worker has begun it
            with Raises(RuntimeError, "is not done after 100 ms", "may be waited for again"):
                work.wait(datetime.timedelta(milliseconds=100))
        work.wait()
        assert torch.equal(data, torch.full((4,), 2.0))


class Messages(unittest.TestCase):
    @on_ranks(2, 3)
    def test_ring(rank, ranks):
        data = torch.full((3,), rank)
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        received = torch.empty(3, dtype=torch.int64)
        work = dist.isend(data, right, tag=4)
        dist.recv(received, left, tag=4)
        work.wait()
        assert torch.equal(received, torch.full((3,), left))

    @on_ranks(3)
    def test_from_any_rank(rank, ranks):
        if rank == 0:
            seen = set()
            for _ in range(2):
                data = torch.empty(2, 2).t()
                source = dist.recv(data)
                assert torch.equal(data, torch.full((2, 2), float(source)))
                seen.add(source)
            assert seen == {1, 2}
        else:
            dist.send(torch.full((2, 2), float(rank)), 0)

    @on_ranks(2, 3)
    def test_batch(rank, ranks):
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        received = torch.empty(5)
        operations = [dist.P2POp(dist.isend, torch.full((5,), float(rank)), right), dist.P2POp(dist.irecv, received, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert torch.equal(received, torch.full((5,), float(left)))

    @on_ranks(2)
    def test_futures(rank, ranks):
        data = torch.full((3,), float(rank))
        work = dist.isend(data, 1) if rank == 0 else dist.irecv(data, 0)
        work.get_future().wait()
        assert data.sum() == 0

    @on_ranks(2)
    def test_a_long_message_during_a_collective(rank, ranks):
        """More than the connection takes: it moves on while its sender is in the barrier."""
        data = torch.full((8 << 20,), float(rank))
        if rank == 0:
            work = dist.isend(data, 1)
            dist.barrier()
            work.wait()
        else:
            dist.recv(data, 0)
            dist.barrier()
            assert data[-1] == 0


class Groups(unittest.TestCase):
    @on_ranks(3)
    def test_subgroups(rank, ranks):
        pair, odd = dist.new_group([0, 2]), dist.new_group([1])
        data = torch.full((4,), float(rank))
        if rank == 1:
            dist.all_reduce(data, group=odd)
            assert torch.equal(data, torch.ones(4))
        else:
            dist.all_reduce(data, group=pair)
            assert torch.equal(data, torch.full((4,), 2.0))
            dist.broadcast(data.fill_(rank), src=2, group=pair)
            assert torch.equal(data, torch.full((4,), 2.0))
        dist.all_reduce(data.fill_(1))
        assert torch.equal(data, torch.full((4,), 3.0))

    @on_ranks(4)
    def test_many_groups_at_once(rank, ranks):
        subgroup, _ = dist.new_subgroups(2)
        others = [dist.new_group([0, 1, 2, 3]) for _ in range(3)]
        tensors = [torch.ones(1000) for _ in range(4)]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, [subgroup, *others])]
        for work in reversed(works):
            work.wait()
        assert [t[0].item() for t in tensors] == [2, 4, 4, 4]

    @on_ranks(2, 3)
    def test_monitored_barrier(rank, ranks):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))

    @on_ranks(3, joins=False)
    def test_monitored_barrier_names_the_missing_rank(rank, ranks, folder):
        init(rank, ranks, folder)
        if rank == 1:
            time.sleep(4)
            return
        with Raises(RuntimeError, "rank 1"):
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))

    @on_ranks(2, joins=False)
    def test_groups_one_after_another_in_one_store(rank, ranks, folder):
        store = dist.FileStore(f"{folder}/one", ranks)
        for i in range(3):
            dist.init_process_group("lockstep", store=store, rank=rank, world_size=ranks)
            data = torch.full((2,), float(i))
            dist.all_reduce(data)
            assert torch.equal(data, torch.full((2,), 2.0 * i))
            dist.destroy_process_group()

    @on_ranks(2, joins=False)
    def test_tcp_store(rank, ranks, folder):
        port = f"{folder}/port"
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, ranks, True, wait_for_workers=False)
            with open(port + ".part", "w", encoding="utf-8") as file:
                file.write(str(store.port))
            os.rename(port + ".part", port)
        else:
            while not os.path.exists(port):
                time.sleep(0.01)
            store = dist.TCPStore("127.0.0.1", int(open(port, encoding="utf-8").read()), ranks, False)
        dist.init_process_group("cpu:lockstep", store=store, rank=rank, world_size=ranks)
        data = torch.ones(2)
        dist.all_reduce(data)
        dist.barrier()
        assert data[0] == 2
        dist.destroy_process_group()


class Failures(unittest.TestCase):
    @on_ranks(2, 3, joins=False)
    def test_ranks_that_disagree(rank, ranks, folder):
        init(rank, ranks, folder)
        with Raises(dist.DistBackendError, "all_reduce", "float32 x 4", "float32 x 5"):
            dist.all_reduce(torch.ones(4 if rank == 0 else 5))
        with Raises(dist.DistBackendError, "float32 x 4"):  # the group has ended
            dist.barrier()

    @on_ranks(3, joins=False, killed=[1])
    def test_a_rank_that_is_killed(rank, ranks, folder):
        init(rank, ranks, folder)
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
        with Raises(dist.DistBackendError, "rank 1"):
            work.wait()
        assert not work.is_success() and "rank 1" in str(work.exception())
        future = work.get_future()
        with Raises(Exception, "rank 1"):
            future.wait()

    @on_ranks(2, joins=False)
    def test_a_rank_that_does_not_come(rank, ranks, folder):
        init(rank, ranks, folder, timeout=datetime.timedelta(seconds=2))
        if rank == 1:
            time.sleep(6)
            return
        with Raises(dist.DistBackendError, "all_reduce", "rank 1"):
            dist.all_reduce(torch.ones(4))

    @on_ranks(2, joins=False)
    def test_a_rank_that_is_not_started(rank, ranks, folder):
        if rank == 1:
            return
        with Raises(RuntimeError, "rank 1"):
            init(rank, ranks, folder, timeout=datetime.timedelta(seconds=2))

    @on_ranks(2, joins=False)
    def test_abort(rank, ranks, folder):
        init(rank, ranks, folder)
        dist.barrier()
        if rank == 0:
            time.sleep(0.5)
            dist.group.WORLD.abort()
        else:
            with Raises(dist.DistBackendError, "rank 0 aborted the group"):
                dist.all_reduce(torch.ones(4))

    @on_ranks(2, joins=False)
    def test_works_that_are_dropped(rank, ranks, folder):
        """destroy_process_group() with works that were never waited for."""
        init(rank, ranks, folder)
        group = dist.group.WORLD
        work = dist.all_reduce(torch.ones(4), async_op=True)
        dist.barrier()
        dist.destroy_process_group()
        assert work.wait()
        with Raises(RuntimeError, f"rank {rank} has left this process group"):
            group._get_backend(torch.device("cpu")).shutdown()
            group._get_backend(torch.device("cpu")).barrier(dist.BarrierOptions())

    @on_ranks(2, joins=False)
    def test_forked_children(rank, ranks, folder):
        """They cannot use their parents' group, and may make one of their own."""
        init(rank, ranks, folder)
        dist.barrier()
        child = os.fork()
        if child == 0:
            try:
                with Raises(RuntimeError, "barrier on rank", "which has forked this one", "spawn"):
                    dist.barrier()
                with Raises(RuntimeError, "send on rank", "which has forked this one"):
                    dist.send(torch.ones(2), 1 - rank)
                dist.destroy_process_group()
                os.makedirs(f"{folder}/children", exist_ok=True)
                init(rank, ranks, f"{folder}/children")
                data = torch.ones(3)
                dist.all_reduce(data)
                assert data.sum() == 6
                dist.destroy_process_group()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        dist.barrier()


if __name__ == "__main__":
    rank_cases.main("__main__")
