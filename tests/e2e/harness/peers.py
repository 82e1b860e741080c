"""Peers mode: hosts in network namespaces on which tests start the same dgxrun command.

The home folder is shared, so all have one key; state and run folders are each host's own.
"""

import glob
import os
import re

from harness.netns import Network
from harness.process import parent, process
from harness.waiting import wait_until

START_S = 30  # for ranks without torch; two loaded cores
PORT = 29400

# A step is a line. Ends when the file `done` is there; rank R exits CODE when the file fail_R_CODE is there (taken
# away first, so that the next attempt does not).
STEPS = r"""
import glob, os, sys, time
folder, rank = sys.argv[1], os.environ["RANK"]
step = 0
while not os.path.exists(os.path.join(folder, "done")):
    step += 1
    print(f"rank {rank} step {step} pid {os.getpid()} attempt {os.environ['DGXRUN_ATTEMPT']}", flush=True)
    for path in glob.glob(os.path.join(folder, f"fail_{rank}_*")):
        os.remove(path)
        sys.exit(int(path.rsplit("_", 1)[1]))
    time.sleep(0.05)
print(f"rank {rank} done after {step}", flush=True)
"""


class PeersNet:
    name = "peers"

    def __init__(self, workspace, nodes=2):
        self.workspace = workspace
        self.network = Network(workspace.root, nodes)
        self.env = {name: {"DGXRUN_STATE_DIR": f"{workspace.state}/{name}", "DGXRUN_RUN_DIR": f"{workspace.run_dir}/{name}"}
                    for name in self.network.hosts}
        workspace.write("steps.py", STEPS)

    def _on(self, node, call, *args, env=None, **options):
        self.workspace.host = self.network.hosts[node]
        try:
            return call(*args, env={**self.env[node], **(env or {})}, **options)
        finally:
            self.workspace.host = None

    def start(self, node, *args, **options):
        """Any dgxrun command on the node; returns at once."""
        return self._on(node, self.workspace.start, *args, **options)

    def run(self, node, *args, **options):
        return self._on(node, self.workspace.run, *args, **options)

    def launch(self, node, *args, endpoint=f"node1:{PORT}", env=None, nodes=2, ranks=2, script=None):
        """The job's command on the node."""
        return self.start(
            node, "--nnodes", nodes, "--nproc-per-node", ranks, "--rdzv-endpoint", endpoint, "--device", "cpu", *args,
            *(script or ["steps.py", self.workspace.cwd]), env=env,
        )

    def steps(self, running, rank, more=0):
        """(step, pid, attempt) of the rank's lines, once there are `more` after those that are there now."""
        regex = re.compile(rf"rank {rank} step (\d+) pid (\d+) attempt (\d+)$", re.MULTILINE)
        now = len(regex.findall(running.stdout))
        wait_until(lambda: len(regex.findall(running.stdout)) >= now + more, START_S, running.transcript)
        return [tuple(map(int, found)) for found in regex.findall(running.stdout)]

    def finish(self):
        self.workspace.write("done", "")

    def fail(self, rank, code):
        self.workspace.write(f"fail_{rank}_{code}", "")

    def shims(self, node):
        return glob.glob(f"{self.workspace.run_dir}/{node}/peers/*/shims/*/shim.sock")

    def close(self):
        self.network.close()


def supervisors(rank_pid):
    """Shim and guard of a rank."""
    shim = parent(process(rank_pid))
    return [shim, parent(shim)]
