"""Writes what a rank was given to FOLDER/facts_<rank>.<attempt>.json: facts.py FOLDER [WORD...]

With "fail" as second word, rank 0 of the first attempt exits 1 once all ranks have written theirs.
"""

import json
import os
import signal
import sys

folder = sys.argv[1]
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
facts = {
    "env": dict(os.environ),
    "argv": sys.argv,
    "executable": sys.executable,
    "unbuffered": bool(sys.stdout.write_through),
    "cwd": os.getcwd(),
    "stdin": os.readlink("/proc/self/fd/0"),
    "fds": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "session_leader": os.getsid(0) == os.getpid(),
    "cpus": len(os.sched_getaffinity(0)),
}
path = os.path.join(folder, f"facts_{rank}.{attempt}.json")
with open(path + ".tmp", "w", encoding="utf-8") as file:
    json.dump(facts, file)
os.rename(path + ".tmp", path)
if sys.argv[2:3] == ["fail"] and rank == "0" and attempt == "0":
    for other in range(int(os.environ["WORLD_SIZE"])):
        while not os.path.exists(os.path.join(folder, f"facts_{other}.{attempt}.json")):
            signal.sigtimedwait([signal.SIGUSR1], 0.005)
    sys.exit(1)
