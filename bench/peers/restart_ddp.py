"""The training of bench/restart.cpp with PyTorch: torchrun --max-restarts 100 --nproc-per-node 2 restart_ddp.py --folder DIR --failures 10"""

import argparse
import datetime
import json
import os
import signal
import time

FLAGS = argparse.ArgumentParser()
FLAGS.add_argument("--folder")
FLAGS.add_argument("--failures", type=int, default=10)
STEPS_OF_ATTEMPT, SAVE_EVERY = 7, 5


def main():
    flags = FLAGS.parse_args()
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with open(f"{flags.folder}/events.{rank}", "a", encoding="utf-8") as events:
        def note(what, step):
            events.write(json.dumps({what: step, "attempt": attempt, "ns": time.monotonic_ns()}) + "\n")
            events.flush()

        note("started", 0)
        import torch  # a part of each restart, as the start of our program is
        import torch.distributed as dist
        import train_step_ddp

        torch.set_num_threads(1)
        torch.manual_seed(0)
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))  # an attempt that does not connect would wait for 30 minutes
        note("connected", 0)
        model, samples, labels = train_step_ddp.make("cifar10", tuned=True)
        ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        optimizer = train_step_ddp.make_optimizer("cifar10", ddp.parameters(), tuned=True)
        checkpoint, step = f"{flags.folder}/checkpoint.pt", 0
        if os.path.exists(checkpoint):
            state = torch.load(checkpoint)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            step = state["step"]
        note("loaded", step)
        for _ in range(STEPS_OF_ATTEMPT):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ddp(samples), labels).backward()
            optimizer.step()
            step += 1
            note("step", step)
            if step % SAVE_EVERY == 0 and rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, checkpoint + ".new")
                os.replace(checkpoint + ".new", checkpoint)
        if attempt < flags.failures and rank == dist.get_world_size() - 1:
            note("killed", step)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
