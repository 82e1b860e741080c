#!/usr/bin/env python3
"""dgxrun and torchrun side by side: start, restart, memory, status.

    tests/bench/run.py [--bin FOLDER] [--python PYTHON] [--repeat N] [--json FILE] [--only REGEX] [--smoke]

Needs python3 and dgxrun's programs; PYTHON is a python that has torch (default: this one), for torchrun and
for the ranks of the `python -c pass` rows. Without torch, or with --no-torchrun, dgxrun is measured alone.
The two are run in turn, row by row, so that a machine whose speed drifts is unfair to neither. Each figure is a
line on stderr as soon as it is measured; the table comes at the end, also where a run fails or is interrupted. Quote
medians and ratios.

first  from the start of the command until rank 0 (or the first rank to get there) has done its first thing:
       it writes to a pipe that this program reads
exit   from the start of the command until it has ended (2 nodes, torchrun: until both have)
death  from the last thing that a failing rank does until a rank of the next attempt does its first; the
       other ranks die at once when they are told to stop
"""

import argparse
import datetime
import json
import os
import platform
import random
import re
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

LIMIT_S = 120  # for one run; a launcher that takes longer hangs
STOP_S = 30  # for a stopped launcher to end

SAY_START = 'echo s > "$BENCH_PIPE"'
# Rank 0 fails once, at a moment that no launcher can be in step with; the others wait to be stopped, and die of
# it at once.
FAIL_ONCE = (
    'if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then '
    'if [ "$RANK" = 0 ]; then sleep "$BENCH_LIFE"; echo d > "$BENCH_PIPE"; exit 1; fi; exec sleep 60; fi; ' + SAY_START
)
TRUE = ["/bin/true"]
SHELL_START = ["/bin/sh", "-c", SAY_START]
PYTHON_START = "import os; f = os.open(os.environ['BENCH_PIPE'], os.O_WRONLY); os.write(f, b's\\n')"


class Pipe:
    """What ranks say, each word with the time at which it was read."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "pipe")
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)  # held for writing too: never at its end

    def drain(self):
        while select.select([self.fd], [], [], 0)[0]:
            os.read(self.fd, 4096)

    def wait(self, word, deadline):
        """The time at which `word` came; other words are passed over."""
        while True:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            now = time.monotonic()
            if not ready:
                raise TimeoutError(f"no rank said {word!r} in time")
            if word.encode() in os.read(self.fd, 4096):
                return now


class Bench:
    def __init__(self, args, folder):
        self.args = args
        self.bin = args.bin
        self.pipe = Pipe(folder)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("DGXRUN_")}
        self.env.update(
            BENCH_PIPE=self.pipe.path, OMP_NUM_THREADS="1",
            DGXRUN_STATE_DIR=os.path.join(folder, "state"), DGXRUN_RUN_DIR=os.path.join(folder, "run"),
        )
        self.logs = open(os.path.join(folder, "output"), "ab")  # what launchers print, to look at on failure

    def dgxrun(self, *words):
        return [os.path.join(self.bin, "dgxrun"), *map(str, words)]

    def run(self, *words):
        job = self.start(self.dgxrun(*words))
        wait(job, time.monotonic() + LIMIT_S)
        if job.returncode != 0:
            raise RuntimeError(f"dgxrun {' '.join(map(str, words))}: exit code {job.returncode}")

    def start(self, argv):
        return subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=self.logs,
                                stderr=self.logs, start_new_session=True)

    def launch(self, tool, nodes, ranks, program, restarts=0):
        """The commands of one job."""
        per_node = ranks // nodes
        if tool == "dgxrun":
            where = ["-g", per_node] if nodes == 1 else ["-n", nodes, "-g", per_node]
            return [self.dgxrun("--device", "cpu", *where, "--max-restarts", restarts, "--no-python", *program)]
        words = [self.args.python, "-m", "torch.distributed.run", "--nproc-per-node", str(per_node),
                 "--max-restarts", str(restarts)]
        if nodes == 1:
            return [[*words, "--nnodes", "1", "--master-port", str(free_port()), "--no-python", *program]]
        rendezvous = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-id", "bench",
                      "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--no-python", *program]
        return [[*words, *rendezvous] for _ in range(nodes)]

    def measure(self, tool, row):
        """Seconds by what was measured: first, exit or death."""
        self.pipe.drain()
        self.env["BENCH_LIFE"] = f"{random.uniform(0.5, 1):.3f}"
        deadline = time.monotonic() + LIMIT_S
        started = time.monotonic()
        jobs = [self.start(argv) for argv in self.launch(tool, row.nodes, row.ranks, row.program(self.args.python),
                                                         restarts=1 if row.kind == "death" else 0)]
        times = {}
        try:
            if row.kind == "death":
                died = self.pipe.wait("d", deadline)
                times["death"] = self.pipe.wait("s", deadline) - died
            elif row.says:
                times["first"] = self.pipe.wait("s", deadline) - started
            for job in jobs:
                wait(job, deadline)
            times["exit"] = time.monotonic() - started
            for job in jobs:
                if job.returncode != 0:
                    raise RuntimeError(f"{tool}: {row.name}: exit code {job.returncode}")
        finally:
            for job in jobs:
                stop(job)
        return {what: times[what] for what in row.what}

    def memory(self, nodes):
        """Of each process that supervises a job of 2 ranks: (PSS, peak RSS) in MiB by name."""
        self.pipe.drain()
        job = self.start(self.launch("dgxrun", nodes, 2, ["/bin/sh", "-c", SAY_START + "; exec sleep 1000"])[0])
        try:
            deadline = time.monotonic() + LIMIT_S
            self.pipe.wait("s", deadline)
            found = {}
            for pid in pids_of(self.env["DGXRUN_STATE_DIR"], self.bin, job.pid):
                name = process_name(pid)
                if name is not None:
                    found.setdefault(name, []).append(memory_of(pid))
            return {name: [max(one[i] for one in all_) for i in (0, 1)] for name, all_ in sorted(found.items())}
        finally:
            stop(job)


class Row:
    def __init__(self, kind, what, nodes, ranks, says=True):
        self.kind, self.what, self.nodes, self.ranks, self.says = kind, what, nodes, ranks, says
        place = "local" if nodes == 1 else f"{nodes} nodes"
        self.name = f"{kind}, {place}, {ranks} rank{'s' if ranks > 1 else ''}"

    def program(self, python):
        if self.kind == "death":
            return ["/bin/sh", "-c", FAIL_ONCE]
        if self.kind == "python -c pass":
            return [python, "-c", PYTHON_START]
        return SHELL_START if self.says else TRUE


def all_rows():
    rows = []
    for nodes, ranks in ((1, 1), (1, 2), (1, 8), (2, 2), (2, 8)):
        rows.append(Row("/bin/true", ["first"], nodes, ranks))
        rows.append(Row("/bin/true", ["exit"], nodes, ranks, says=False))
        rows.append(Row("python -c pass", ["first", "exit"], nodes, ranks))
    return rows + [Row("death", ["death"], nodes, 2) for nodes in (1, 2)]


def wait(job, deadline):
    """Until it has ended; killed at the deadline. Popen.wait with a time limit looks now and then, which shows."""
    killer = threading.Timer(max(0.0, deadline - time.monotonic()), os.killpg, (job.pid, signal.SIGKILL))
    killer.start()
    try:
        job.wait()
    finally:
        killer.cancel()


def stop(job):
    """Ends a launcher that still runs; its ranks go with it."""
    if job.poll() is None:
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # it has just ended, or is another's
        return ""


def pids_of(state, folder, job):
    """Processes that run a program of `folder` for this job or this bench's cluster."""
    folder = os.path.realpath(folder)
    ours, parents = [], {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            program = os.path.realpath(os.readlink(f"/proc/{name}/exe"))
        except OSError:
            continue
        parents[int(name)] = int(read(f"/proc/{name}/stat").rpartition(")")[2].split()[1] or 0)
        if os.path.dirname(program) == folder:
            ours.append(int(name))

    def belongs(pid):
        while pid > 1:
            if pid == job or state in read(f"/proc/{pid}/cmdline"):
                return True
            pid = parents.get(pid, 0)
        return False

    return [pid for pid in ours if belongs(pid)]


def process_name(pid):
    name = read(f"/proc/{pid}/comm").strip()
    if name == "dgxrun" and read(f"/proc/{pid}/environ").strip("\0") == "":
        return "dgxrun (janitor)"  # it has wiped its environment
    program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    return program if program.startswith(name) else name or None  # the kernel keeps 15 characters


def memory_of(pid):
    def kib(path, key):
        found = re.search(rf"^{key}:\s+(\d+) kB", read(path), re.M)
        return int(found.group(1)) if found else 0

    return (kib(f"/proc/{pid}/smaps_rollup", "Pss") / 1024, kib(f"/proc/{pid}/status", "VmHWM") / 1024)


def machine():
    model = re.search(r"^model name\s*: (.*)$", read("/proc/cpuinfo"), re.M)
    return {
        "cpu": model.group(1) if model else platform.machine(), "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(), "load": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
    }


def torch_version(python):
    found = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def timed(bench, *words):
    started = time.monotonic()
    bench.run(*words)
    return time.monotonic() - started


class Figures:
    """{(row name, what): {tool: [seconds]}}, in the order of their first coming."""

    def __init__(self, repeat):
        self.values = {}
        self.repeat = repeat

    def note(self, name, what, tool, seconds):
        mine = self.values.setdefault((name, what), {}).setdefault(tool, [])
        mine.append(seconds)
        print(f"{len(mine)}/{self.repeat}  {name:34}{what:7}{tool:9}{seconds * 1000:10.1f} ms", file=sys.stderr, flush=True)

    def rows(self):
        rows = []
        for (name, what), by_tool in self.values.items():
            row = {"name": name, "what": what, **{tool: summary(v) for tool, v in by_tool.items()}}
            if "torchrun" in row and "dgxrun" in row:
                row["ratio"] = row["torchrun"]["median"] / row["dgxrun"]["median"]
            rows.append(row)
        return rows


def measure_all(bench, rows, tools, figures, torch_rows):
    """Nodes come and go within."""
    for _ in range(figures.repeat):
        figures.note("dgxrun dev up, 2 nodes", "exit", "dgxrun", timed(bench, "dev", "up", "-n", 2))
        try:
            for row in rows:
                for tool in tools:
                    if tool == "torchrun" and row not in torch_rows:
                        continue
                    for what, seconds in bench.measure(tool, row).items():
                        figures.note(row.name, what, tool, seconds)
            bench.run("-n", 2, "-g", 1, "--device", "cpu", "--no-python", *TRUE)  # for the status to tell of
            figures.note("dgxrun status", "exit", "dgxrun", timed(bench, "status", "--cluster", "dev"))
        finally:
            figures.note("dgxrun dev down", "exit", "dgxrun", timed(bench, "dev", "down"))


def table(result):
    lines = ["{cpu}, {cores} cores, Linux {kernel}, load {load:.1f}, {date}".format(**result["machine"]),
             f"dgxrun {result['dgxrun']}; torch {result['torch'] or '(none)'}", "",
             f"{'':34}{'':7}{'dgxrun ms':>24}{'torchrun ms':>26}{'ratio':>8}"]
    for row in result["rows"]:
        cells = [f"{row['name']:34}{row['what']:7}"]
        for tool, width in (("dgxrun", 24), ("torchrun", 26)):
            one = row.get(tool)
            text = "" if one is None else "{median:.1f} ({min:.1f} - {max:.1f})".format(
                **{key: one[key] * 1000 for key in ("median", "min", "max")})
            cells.append(f"{text:>{width}}")
        cells.append(f"{row['ratio']:7.{0 if row['ratio'] >= 10 else 1}f}x" if "ratio" in row else "")
        lines.append("".join(cells).rstrip())
    for place, processes in result["memory"].items():
        lines += ["", f"memory, {place}: MiB by process (PSS, peak RSS)"]
        lines += [f"  {name:20}{pss:8.1f}{peak:8.1f}" for name, (pss, peak) in processes.items()]
    return "\n".join(lines)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "release", "bin")
    parser.add_argument("--bin", default=os.environ.get("DGXRUN_BIN", beside), help="folder of dgxrun's programs")
    parser.add_argument("--python", default=sys.executable, help="a python that has torch")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--only", default="", help="rows whose name matches")
    parser.add_argument("--no-torchrun", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="once; torchrun for one row only")
    return parser.parse_args()


def main():
    args = options()
    args.bin = os.path.realpath(args.bin)
    version = subprocess.run([os.path.join(args.bin, "dgxrun"), "--version"], stdout=subprocess.PIPE, text=True,
                             check=True).stdout.split()[-1]
    torch = None if args.no_torchrun else torch_version(args.python)
    rows = [row for row in all_rows() if re.search(args.only, row.name)]
    torch_rows = [] if torch is None else rows[1:2] if args.smoke else rows
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # run folders must be on a tmpfs
    folder = tempfile.mkdtemp(prefix="bench-", dir=base)
    figures = Figures(1 if args.smoke else args.repeat)
    result = {"memory": {}}
    try:
        bench = Bench(args, folder)
        result.update(machine=machine(), dgxrun=version, torch=torch)
        tools = ["dgxrun"] + (["torchrun"] if torch else [])
        measure_all(bench, rows, tools, figures, torch_rows)
        result["memory"]["local, 2 ranks"] = bench.memory(1)
        bench.run("dev", "up", "-n", 2)
        try:
            result["memory"]["dev cluster, 2 nodes, 2 ranks"] = bench.memory(2)
        finally:
            bench.run("dev", "down")
    except Exception:
        sys.stderr.write(read(os.path.join(folder, "output"))[-4000:])
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        result["rows"] = figures.rows()
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
        if result["rows"]:
            print(table(result))


if __name__ == "__main__":
    main()
