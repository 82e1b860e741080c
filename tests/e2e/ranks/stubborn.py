"""A rank that is hard to get rid of: stubborn.py FOLDER WHAT [RANK]

Starts two grandchildren (double fork and setsid; one also without any environment) that ignore SIGTERM,
SIGINT and SIGHUP, ignores them itself, and rank 0 listens on MASTER_PORT. Then writes
FOLDER/rank_<rank>.<attempt>.json with all pids and the port.

WHAT: "exit:N" ends with that code (with RANK: only that rank, the others wait); "wait" waits for ever.
"""

import json
import os
import signal
import socket
import sys

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def wait_for_ever():
    while True:
        signal.pause()


def escape(without_environment):
    """Returns the pid of a process that is nobody's child and in nobody's session."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            for number in IGNORED:
                signal.signal(number, signal.SIG_IGN)
            os.write(writable, str(os.getpid()).encode())
            os.close(writable)
            if without_environment:
                os.execve("/bin/sleep", ["sleep", "1000000"], {})
            wait_for_ever()
        os._exit(0)
    os.close(writable)
    os.waitpid(child, 0)
    with os.fdopen(readable, "rb") as file:
        return int(file.read(20))


def main():
    folder, what = sys.argv[1], sys.argv[2]
    rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    port = int(os.environ["MASTER_PORT"])
    if rank == 0:
        store = socket.socket(socket.AF_INET6)
        store.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("::", port))
        store.listen()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    pids = [os.getpid(), escape(False), escape(True)]
    path = os.path.join(folder, f"rank_{rank}.{attempt}.json")
    with open(path + ".tmp", "w", encoding="ascii") as file:
        json.dump({"rank": rank, "pids": pids, "port": port}, file)
    os.rename(path + ".tmp", path)
    if what.startswith("exit:") and (len(sys.argv) < 4 or int(sys.argv[3]) == rank):
        # Only when every rank has its grandchildren: the test wants to see them all gone.
        for other in range(int(os.environ["WORLD_SIZE"])):
            name = os.path.join(folder, f"rank_{other}.{attempt}.json")
            while not os.path.exists(name):
                signal.sigtimedwait([signal.SIGUSR1], 0.005)
        sys.exit(int(what.removeprefix("exit:")))
    wait_for_ever()


main()
