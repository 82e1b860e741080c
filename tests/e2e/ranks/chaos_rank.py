"""A rank that leaves traces: chaos_rank.py FOLDER STEPS END

Writes numbered lines to stdout, its step to FOLDER/step.<job>.<rank>, from which the next attempt goes on, and to
FOLDER/beat.<job>.<attempt>.<rank>.<pid>: when it began, when it last lived (CLOCK_MONOTONIC, ns), and how many
lines it has written. END, once all steps are done: an exit code, or "wait" for ever, with a grandchild in a session of
its own.
"""

import os
import subprocess
import sys
import time

STEP_S = 0.02
LINES_A_STEP = 5  # tests/e2e/test_chaos.py knows it

first = time.monotonic_ns()
folder, steps, end = sys.argv[1], int(sys.argv[2]), sys.argv[3]
job, attempt, rank = (os.environ[name] for name in ("DGXRUN_JOB_ID", "DGXRUN_ATTEMPT", "RANK"))
beat = os.open(os.path.join(folder, f"beat.{job}.{attempt}.{rank}.{os.getpid()}"), os.O_CREAT | os.O_WRONLY)
step_file = os.open(os.path.join(folder, f"step.{job}.{rank}"), os.O_CREAT | os.O_RDWR)
step = int(os.pread(step_file, 12, 0) or 0)
lines = 0
if end == "wait":
    subprocess.Popen(["sleep", "600"], start_new_session=True)
while step < steps or end == "wait":
    for _ in range(LINES_A_STEP):
        os.write(1, f"{attempt} {rank} {lines} of {job}\n".encode())
        lines += 1
    step += 1
    os.pwrite(beat, b"%20d %20d %10d" % (first, time.monotonic_ns(), lines), 0)
    os.pwrite(step_file, b"%12d" % step, 0)
    time.sleep(STEP_S)
os.pwrite(beat, b"%20d %20d %10d" % (first, time.monotonic_ns(), lines), 0)
sys.exit(int(end) if rank == "1" else 0)
