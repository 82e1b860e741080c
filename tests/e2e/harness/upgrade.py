"""A cluster on one machine in which some speak the wire of another release.

wire_proxy (tests/contract) stands between them and the controller: each side hears only what the other
release could have said, and its version. `old`: who is behind it: names of nodes, and "client". Without `say` it
changes nothing: it writes a line for each message into `wire_log`.
"""

import os
import re

from harness.modes import UP_S
from harness.process import Running, wait_gone
from harness.waiting import wait_until

EVERYBODY = ("node1", "node2", "client")


def built_tests(workspace):
    """wire_proxy and wire_1_0.pb: beside the programs of a build, or in $DGXRUN_TESTS_BIN."""
    folder = os.environ.get("DGXRUN_TESTS_BIN") or os.path.join(os.path.dirname(workspace.bin), "tests")
    assert os.access(os.path.join(folder, "wire_proxy"), os.X_OK), f"{folder}/wire_proxy is missing: build target test_tools"
    return folder


class UpgradeMode:
    name = "upgrade"

    def __init__(self, workspace, old=EVERYBODY, say="1.0", wait=True):
        self.workspace = workspace
        self.old = old
        self.node_names = ["node1", "node2"]
        self.controller_socket = os.path.join(workspace.root, "c.sock")
        self.proxy_socket = os.path.join(workspace.root, "p.sock")
        self.daemon_of = {}
        self.wire_log = os.path.join(workspace.out, "wire.log")
        self.write("controller", f'[controller]\nstate_dir = "{workspace.state}/controller"\n'
                   f'unix_socket = "{self.controller_socket}"\n')
        self.start_controller()
        self.start_proxy(say)
        for node in self.node_names:
            self.start_agent(node)
        workspace.env["DGXRUN_CLUSTER"] = self.write("client", "")
        if wait:
            wait_until(self.up, UP_S, lambda: "\n".join(one.transcript() for one in self.daemon_of.values()))

    def write(self, who, more):
        """A cluster file that sends `who` to the controller, or to the proxy."""
        path = os.path.join(self.workspace.root, f"{who}.toml")
        target = self.proxy_socket if who in self.old else self.controller_socket
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[cluster]\nname = "up"\ncontroller = "unix:{target}"\n' + more)
        return path

    def start(self, who, program, *config):
        path = program if "/" in program else os.path.join(self.workspace.bin, program)
        args = config if "/" in program else ("--config", *config)
        running = Running(
            [path, *args], env=self.workspace.env, cwd=self.workspace.root, out_dir=self.workspace.out,
            name=f"{who}-{len(self.workspace.running)}",
        )
        self.workspace.running.append(running)
        self.daemon_of[who] = running
        return running

    def start_controller(self):
        self.start("controller", "dgxrun-controller", os.path.join(self.workspace.root, "controller.toml"))
        self.daemon_of["controller"].wait_line("listens on", UP_S, stream="stderr")

    def start_proxy(self, say):
        tests = built_tests(self.workspace)
        how = ["--wire", os.path.join(tests, "wire_1_0.pb"), "--say", say] if say else []
        proxy = self.start(
            "proxy", os.path.join(tests, "wire_proxy"), "--listen", f"unix:{self.proxy_socket}",
            "--dial", f"unix:{self.controller_socket}", "--log", self.wire_log, *how)
        proxy.wait_line("ready", UP_S)

    def messages(self, start=0):
        """What has passed from an offset of the log on: (method, "request" or "reply", kind, bytes) each."""
        with open(self.wire_log, encoding="ascii") as file:
            file.seek(start)
            return [(method.rpartition("/")[2], way, kind, int(size))
                    for method, way, kind, size in (line.split() for line in file)]

    def start_agent(self, node):
        base = os.path.join(self.workspace.state, node)
        return self.start(node, "dgxrun-agent", self.write(
            node, f'[agent]\nname = "{node}"\nstate_dir = "{base}/state"\n'
            f'run_dir = "{self.workspace.run_dir}/{node}"\nlog_dir = "{base}/logs"\nallow_root = true\n'))

    def up(self):
        done = self.workspace.run("nodes", "--json", expect=None)
        return done.returncode == 0 and len(re.findall(r'"state": *"up"', done.stdout)) == len(self.node_names)

    def launch_args(self, ranks):
        return ["-n", len(self.node_names), "-g", ranks // len(self.node_names)]

    def close(self):
        daemons = [one.process for one in self.daemon_of.values()]
        for who in (*self.node_names, "proxy", "controller"):
            if self.daemon_of[who].popen.poll() is None:
                self.daemon_of[who].popen.terminate()
        for running in self.daemon_of.values():
            running.wait(UP_S)
        wait_gone(daemons, 1)
        self.workspace.env.pop("DGXRUN_CLUSTER", None)
