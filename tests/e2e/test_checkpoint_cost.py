"""What it costs to judge large checkpoints: calls and memory are bounded, times are only printed.

Files are sparse: as long as real ones, and nearly nothing on the disk.
"""

import collections
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import time
import zlib

import pytest

from harness.workspace import binaries

FILES = 10_000
FILE_BYTES = 100_000_000  # a terabyte in all
LISTED = 500
FILES_OF_LISTED = 8
# Of a file: its time and size, an open and what was opened, the magic number, the end, the directory of the
# zip, a close. One more, for what is asked once.
MAX_CALLS_A_FILE = 9
MAX_READS_A_FILE = 4
# Of a folder: its time, what it is, an open, its names, the file system's word that there are no more, a close.
MAX_CALLS_A_CHECKPOINT = 12
READ_CALLS = ("read", "pread64", "readv", "preadv", "preadv2")
# Names of 10,000 files and one file's directory of members, beside what the program itself takes: 18 MiB today,
# with the libraries of a distribution more.
MAX_MEMORY_KIB = 48 * 1024
LIMIT_S = 120
# Calls of a command that judges nothing: its start and the libraries that it loads.
MAX_CALLS_OF_START = 1500


def sparse_torch_file(path, size):
    """As torch.save writes one tensor, with a hole where the tensor's bytes would be."""
    members = [("archive/data.pkl", pickle.dumps({"step": 7}, protocol=2)), ("archive/data/0", None), ("archive/version", b"3\n")]
    overhead = sum(30 + 46 + 2 * len(name) + len(data or b"") for name, data in members) + 22
    with open(path, "wb") as file:
        at, directory = 0, b""
        for name, data in members:
            length = size - overhead if data is None else len(data)
            crc = 0 if data is None else zlib.crc32(data)
            fields = struct.pack("<HHHIIIIHH", 0, 0x0800, 0, 0, crc, length, length, len(name), 0)
            file.seek(at)
            file.write(b"PK\3\4" + fields + name.encode() + (data or b""))
            directory += b"PK\1\2" + struct.pack("<H", 0) + fields
            directory += struct.pack("<HHHII", 0, 0, 0, 0, at) + name.encode()
            at += 30 + len(name) + length
        file.seek(at)
        file.write(directory)
        file.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), at, 0))
    assert os.path.getsize(path) == size


def counted(argv, folder):
    """Calls by name, of all threads."""
    trace = os.path.join(folder, "trace")
    done = subprocess.run(
        ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", trace, *argv], stdout=subprocess.DEVNULL, timeout=LIMIT_S
    )
    assert done.returncode == 0
    calls = collections.Counter()
    with open(trace) as file:
        for number, name in re.findall(r"^ *(\d+) +(\w+)$", file.read(), re.MULTILINE):
            if name != "total":
                calls[name] += int(number)
    return calls


# The peak memory of a child counts that of the process which forked it, so a small one does.
MEASURE = (
    "import resource, subprocess, sys\n"
    "done = subprocess.run(sys.argv[1:])\n"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "print(used.ru_maxrss, used.ru_utime + used.ru_stime, file=sys.stderr)\n"
    "sys.exit(done.returncode)\n"
)


def measured(argv):
    """What it prints, and its peak memory in KiB."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-S", "-c", MEASURE, *argv],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S,
    )
    took = time.monotonic() - begin
    assert done.returncode == 0, done.stderr
    memory, cpu = done.stderr.split()
    print(f"{' '.join(argv[1:3])}: {took:.2f} s, {float(cpu):.2f} s of CPU, {int(memory) // 1024} MiB")
    return done.stdout, int(memory)


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine")
@pytest.mark.parametrize("what", ["a terabyte in 10,000 files", "500 checkpoints"])
def test_calls_and_memory(tmp_path, what):
    folder = tmp_path / "ckpt"
    if what == "500 checkpoints":
        sparse_torch_file(tmp_path / "one", FILE_BYTES)
        for step in range(1, LISTED + 1):
            os.makedirs(folder / f"step_{step}")
            for number in range(FILES_OF_LISTED):
                os.link(tmp_path / "one", folder / f"step_{step}" / f"shard_{number}.pt")
        files, found = LISTED * FILES_OF_LISTED, LISTED
    else:
        os.makedirs(folder / "step_7")
        for number in range(FILES):
            sparse_torch_file(folder / "step_7" / f"shard_{number:05d}.pt", FILE_BYTES)
        files, found = FILES, 1
    old = 1_600_000_000
    for place, _, names in os.walk(folder):
        for name in names:
            os.utime(os.path.join(place, name), (old, old))
    for command in ("ls", "verify"):
        argv = [os.path.join(binaries(), "dgxrun"), "ckpt", command, str(folder), "--json"]
        text, memory = measured(argv)
        checkpoints = json.loads(text)["checkpoints"]
        assert len(checkpoints) == found
        assert {one["verdict"] for one in checkpoints} == {"COMPLETE"}
        assert sum(one["bytes"] for one in checkpoints) == files * FILE_BYTES
        assert memory <= MAX_MEMORY_KIB
    calls = counted(argv, tmp_path)
    most = MAX_CALLS_OF_START + MAX_CALLS_A_FILE * files + MAX_CALLS_A_CHECKPOINT * found
    assert sum(calls.values()) <= most, calls
    assert sum(calls[name] for name in READ_CALLS) <= MAX_CALLS_OF_START + MAX_READS_A_FILE * files, calls
