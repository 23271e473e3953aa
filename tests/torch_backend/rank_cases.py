"""Cases that run on the ranks of a small job: each test method's body is called on every rank, in a process of its own.

    class Sums(RankCases):
        @on_ranks(2, 3)
        def test_sum(rank, ranks): ...      # no self: it runs elsewhere

The processes are forks of this one, which has imported PyTorch but made no group.
"""

import functools
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import unittest
import xml.sax.saxutils

import torch
import torch.distributed as dist

LONGEST = 120  # seconds that a case may take; no case takes a tenth of it on two free cores
_fork = multiprocessing.get_context("fork")


def init(rank, ranks, folder, backend="lockstep", **options):
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks, **options)


def _run_rank(body, rank, ranks, folder, result, joins):
    code = 1
    try:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = str(rank), str(ranks)
        if joins:
            init(rank, ranks, folder)
            body(rank, ranks)
            dist.barrier()
            dist.destroy_process_group()
        else:
            body(rank, ranks, folder)
        code = 0
    except BaseException:
        result.send(traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_ranks(body, ranks, joins=True, killed=()):
    """Raises AssertionError with the traceback of the first rank that failed. Ranks in `killed` may end as they like."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            receive, send = _fork.Pipe(duplex=False)
            processes.append(_fork.Process(target=_run_rank, args=(body, rank, ranks, folder, send, joins)))
            processes[-1].start()
            send.close()
            pipes.append(receive)
        end = time.monotonic() + LONGEST
        for process in processes:
            process.join(max(0, end - time.monotonic()))
        late = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        for process in processes:
            if process.exitcode is None:
                process.kill()
                process.join()
        texts = []
        for rank, (process, pipe) in enumerate(zip(processes, pipes)):
            if process.exitcode != 0 and rank not in killed:
                try:
                    why = pipe.recv()
                except EOFError:
                    why = f"exit code {process.exitcode}, without an exception"
                texts.append(f"rank {rank} of {ranks}: {why}")
        assert not late, f"ranks {late} of {ranks} did not end in {LONGEST} s\n" + "\n".join(texts)
        assert not texts, "\n".join(texts)


def on_ranks(*worlds, joins=True, killed=()):
    def decorate(body):
        @functools.wraps(body)
        def test(self):
            for ranks in worlds:
                with self.subTest(ranks=ranks):
                    run_ranks(body, ranks, joins, killed)

        return test

    return decorate


class Raises:
    """`with Raises(RuntimeError, "text")`: the exception's text has all of these parts."""

    def __init__(self, kind, *parts):
        self.kind, self.parts = kind, parts

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        assert error is not None, f"expected {self.kind.__name__} with {self.parts}, and nothing was raised"
        if not isinstance(error, self.kind):
            return False
        self.text = str(error)
        for part in self.parts:
            assert part in self.text, f"'{part}' is not in '{self.text}'"
        return True


class _XmlResult(unittest.TextTestResult):
    """Keeps what GoogleTest's XML report has, which `meson test` reads."""

    def __init__(self, *args):
        super().__init__(*args)
        self.cases = {}

    def startTest(self, test):
        self.cases[test] = {"begin": time.monotonic()}
        super().startTest(test)

    def stopTest(self, test):
        self.cases[test]["seconds"] = time.monotonic() - self.cases[test]["begin"]
        super().stopTest(test)

    def _fail(self, test, error):
        self.cases[test]["failure"] = self._exc_info_to_string(error, test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._fail(test, error)

    def addError(self, test, error):
        super().addError(test, error)
        if test in self.cases:
            self._fail(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self._fail(test, error)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.cases[test]["skipped"] = reason

    def write(self, path):
        quote = xml.sax.saxutils.quoteattr
        with open(path, "w", encoding="utf-8") as file:
            file.write('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="AllTests">\n')
            for suite in sorted({type(test).__name__ for test in self.cases}):
                file.write(f"<testsuite name={quote(suite)}>\n")
                for test, case in self.cases.items():
                    if type(test).__name__ != suite:
                        continue
                    name = test.id().rpartition(".")[2]
                    file.write(f'<testcase name={quote(name)} classname={quote(suite)} time="{case.get("seconds", 0):.3f}">')
                    if "failure" in case:
                        file.write(f"<failure message={quote(case['failure'])}/>")
                    if "skipped" in case:
                        file.write(f"<skipped message={quote(case['skipped'])}/>")
                    file.write("</testcase>\n")
                file.write("</testsuite>\n")
            file.write("</testsuites>\n")


def main(module):
    """unittest's main, which understands --gtest_output=xml:FILE, too."""
    report = next((a.partition("xml:")[2] for a in sys.argv if a.startswith("--gtest_output=xml:")), None)
    arguments = [a for a in sys.argv if not a.startswith("--gtest_")]
    runner = unittest.TextTestRunner(resultclass=_XmlResult, verbosity=2)
    result = unittest.main(module=module, argv=arguments, testRunner=runner, exit=False).result
    if report:
        result.write(report)
    sys.exit(0 if result.wasSuccessful() else 1)
