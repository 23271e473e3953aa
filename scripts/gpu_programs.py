"""Finds the programs for test-gpu and bench-gpu (in a build folder, or a bundle) and the libraries that they load: CUDA's, cuDNN, NCCL."""

import glob
import json
import os
import pathlib
import select
import shutil
import signal
import site
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The libraries that liblockstep_cuda.so needs, those that are loaded for several ranks, and the driver's own.
LIBRARIES = ["libcublasLt.so.13", "libcudnn.so.9", "libnvrtc.so.13", "libnccl.so.2", "libcuda.so.1"]
# The time for a program that only answers a question.
SHORT_S = 60
BUILD_FOLDERS = ["launcher", "examples", "bench", "tests/gpu", "tests/kernels"]


class Failed(Exception):
    """The output of a program that failed: its part is listed as not measured."""


def is_bundle():
    return (ROOT / "bin/lockrun").exists()


def library_folders():
    """Folders that may contain NVIDIA's libraries, the likeliest first: named ones, toolkits, the wheels next to PyTorch."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += [os.path.join(os.environ[name], "lib64") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders += ["/usr/local/cuda/lib64", *sorted(glob.glob("/usr/local/cuda-*/lib64"), reverse=True)]
    folders += ["/usr/local/cuda/targets/x86_64-linux/lib", "/usr/local/cuda/targets/sbsa-linux/lib", "/usr/lib/x86_64-linux-gnu",
                "/usr/lib/aarch64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]
    packages = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    for package in dict.fromkeys(packages):
        folders += sorted(glob.glob(os.path.join(package, "nvidia/*/lib")))
    return [folder for folder in dict.fromkeys(folders) if folder]


def known_to_the_loader():
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin")
    if ldconfig is None:
        return ""
    try:
        return subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False, timeout=SHORT_S).stdout
    except subprocess.TimeoutExpired:
        return ""


class Programs:
    def __init__(self, build):
        self.build = pathlib.Path(build)
        self.missing = []  # libraries that were not found
        self.environment = dict(os.environ)
        folders, known, wanted = library_folders(), known_to_the_loader(), []
        for library in LIBRARIES:
            found = next((folder for folder in folders if os.path.exists(os.path.join(folder, library))), None)
            if found is not None:
                wanted.append(found)
            elif library not in known:
                self.missing.append(library)
        mine = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        self.environment["LD_LIBRARY_PATH"] = ":".join(path for path in dict.fromkeys([*mine, *wanted]) if path)
        if is_bundle():
            self.use_own_runtime_if_needed()

    def use_own_runtime_if_needed(self):
        """The bundle's libstdc++ is for machines with none or an older one; a newer one of the machine takes precedence."""
        starts = subprocess.run([self.path("lockrun"), "--help"], env=self.environment, capture_output=True, text=True, check=False,
                                timeout=SHORT_S)
        if starts.returncode != 0:
            self.environment["LD_LIBRARY_PATH"] = f"{ROOT / 'lib'}:{self.environment['LD_LIBRARY_PATH']}"

    def path(self, name):
        places = [ROOT / "bin" / name] if is_bundle() else [self.build / folder / name for folder in BUILD_FOLDERS]
        for place in places:
            if place.exists():
                return str(place)
        sys.exit(f"{name} is not in {', '.join(str(place.parent) for place in places)}: build it with `ninja -C {self.build}`")


class Process:
    """A program whose lines are read as they arrive, and which is killed when its time is over."""

    def __init__(self, command, limit_s, environment=None, errors=None, answers=False):
        self.command = [str(word) for word in command]
        self.until = time.monotonic() + limit_s
        self.is_out_of_time = False
        self.process = subprocess.Popen(self.command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=errors,
                                        stdin=subprocess.PIPE if answers else subprocess.DEVNULL)
        self.rest, self.is_at_end = b"", False

    def line(self, within_s=None):
        """The next line; None at the end, or when the time (of the program, or of this line) is over, and the program is killed."""
        until = min(self.until, time.monotonic() + within_s) if within_s is not None else self.until
        while not self.is_at_end:
            if time.monotonic() > until:  # also for a program that never stops printing
                self.is_out_of_time = self.is_at_end = True
                self.end()
            elif b"\n" in self.rest:
                break
            elif select.select([self.process.stdout], [], [], 0.1)[0]:
                chunk = os.read(self.process.stdout.fileno(), 65536)
                self.rest += chunk
                self.is_at_end = not chunk
            elif self.process.poll() is not None:  # a process that it started may still have its output open
                self.is_at_end = True
        if not self.rest:
            return None
        first, _, self.rest = self.rest.partition(b"\n")
        return first.decode(errors="replace")

    def __iter__(self):
        return iter(self.line, None)

    def say(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def end(self):
        """Also ends all processes that it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it hangs in the driver, and cannot be helped
            print(f"{self.command[0]}: process {self.process.pid} was killed and is still there after 10 s", flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def code(self, within_s=float("inf")):
        """The exit code; None if the time was over. Call it after the last line."""
        if self.is_out_of_time:
            return None
        try:
            return self.process.wait(timeout=min(within_s, max(0.0, self.until - time.monotonic())))
        except subprocess.TimeoutExpired:
            self.is_out_of_time = True
            self.end()
            return None


def row_of(line, process):
    try:
        return json.loads(line)
    except json.JSONDecodeError as reason:
        raise Failed(f"{process.command[0]} printed a line that is not JSON ({reason}): {line[:200]}") from None


def ended_by_user(main):
    """The exit code of `main`; on Ctrl-C and SIGTERM it cleans up and ends without a Python traceback."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def run_until(until, command):
    """Prints the command's output; returns its exit code. When the time is over, ends the command, all processes that it started, and this
    program. At a terminal the command is in this program's process group, since sudo may have to prompt there."""
    is_apart = not sys.stdin.isatty()
    process = subprocess.Popen([str(word) for word in command], cwd=ROOT, start_new_session=is_apart)
    try:
        return process.wait(None if until == float("inf") else max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        sys.exit(f"{command[0]} has not ended in time (--time-limit)")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL) if is_apart else process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def targets_of(folder, until):
    """What ninja can build there."""
    if (code := run_until(until, [ROOT / "scripts/configure", folder])) != 0:
        raise OSError(f"scripts/configure ended with {code}")
    known = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], check=True, capture_output=True, text=True, timeout=SHORT_S).stdout
    return {line.partition(":")[0] for line in known.splitlines()}


def configured(folder, wanted, until):
    """The targets. scripts/dependencies is called only if some of the wanted ones are missing: it asks the network, which may not be there. With a
    bundle there is no need for it."""
    is_new, reason = not folder.exists(), "not all programs can be built"
    try:
        known = targets_of(folder, until)
        if wanted <= known or other_script().exists():
            return known
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        if other_script().exists():
            raise
        reason = error
    print(f"{reason}: scripts/dependencies installs packages that are missing", flush=True)
    if run_until(until, [ROOT / "scripts/dependencies"]) != 0:
        print("scripts/dependencies failed: going on with what is installed", flush=True)
        return targets_of(folder, until)
    # Meson looks again for what it had not found only in a new folder, or without what it remembers.
    if is_new:
        shutil.rmtree(folder, ignore_errors=True)
    elif run_until(until, ["meson", "setup", "--reconfigure", "--clearcache", folder]) != 0:
        raise OSError("meson setup --reconfigure failed")
    return targets_of(folder, until)


def build(folder, targets, until, wants_cuda=True):
    """Builds the programs in a source tree, with the CUDA part if it is configured. If packages are missing and cannot be installed, builds
    with the installed ones. If nothing, or not the CUDA part, can be built, a bundle in build-bundle that was made elsewhere is used."""
    cuda, programs = "src/cuda/liblockstep_cuda.so", ["launcher/lockrun", *targets]
    try:
        known = configured(folder, {*programs, *([cuda] if wants_cuda else [])}, until)
        if wants_cuda and cuda not in known:
            print("the build has no CUDA part: its summary says why", flush=True)
            if other_script().exists():
                raise OSError("no CUDA part")
        if (code := run_until(until, ["ninja", "-C", folder, *programs, *([cuda] if cuda in known else [])])) != 0:
            raise OSError(f"ninja ended with {code}")
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as reason:
        use_bundle_instead(reason, until)


def other_script():
    """The running script, in a bundle."""
    return ROOT / "build-bundle/lockstep/scripts" / pathlib.Path(sys.argv[0]).name


def use_bundle_instead(reason, until):
    """Does not return."""
    script = other_script()
    if not script.exists():
        sys.exit(f"the programs cannot be built here: {reason}. Make them elsewhere by `scripts/bundle`, and bring build-bundle along")
    print(f"the programs cannot be built here: {reason}; using {script.parent.parent}", flush=True)
    left = [] if until == float("inf") else ["--time-limit", f"{max(1.0, until - time.monotonic()):.0f}"]  # the last one counts
    os.execv(sys.executable, [sys.executable, str(script), *sys.argv[1:], *left])
