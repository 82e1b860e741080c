"""The ways to get nodes, behind one face: local, dev cluster, and a cluster over the network.

A mode says how `dgxrun` is told to use it (launch_args), which processes belong to it rather than to a
job (daemons), how long its ranks may outlive an agent that is not coming back (fence_s), and when the
controller then counts them as gone, so that the job ends (fenced_s).
"""

import os
import re
import socket

from harness.netns import HUB_ADDRESS, Network
from harness.process import Running, cmdline, descendants, executable, process, wait_gone
from harness.waiting import wait_until

# The controller waits longer than the node: time to kill, and clocks that do not run alike.
FENCE_ALLOWANCE_S = 3 + 1
PROMPT_S = 2.0  # the documented time from the end of a job until nothing of it is left
UP_S = 20  # for daemons to start and find each other on a loaded machine


def programs(name):
    """Living processes below pytest that run this program."""
    return [one for one in descendants() if executable(one.pid) == name]


class LocalMode:
    name = "local"
    fence_s = fenced_s = PROMPT_S  # the agent is the dgxrun process: its end is seen at once

    def __init__(self, workspace):
        self.workspace = workspace
        self.node_names = [socket.gethostname()]

    def launch_args(self, ranks):
        return ["-g", ranks]

    def daemons(self):
        return []

    def holds_sockets(self):
        return False

    def host_argv(self, node, *command):
        return list(command)

    def close(self):
        pass


class DevMode:
    name = "dev"
    fence_s = 10 + PROMPT_S  # isolation_timeout of a dev cluster
    # The controller of a cluster that has just come up knows two heartbeats later that its committee hears it.
    fenced_s = fence_s + FENCE_ALLOWANCE_S + 2

    def __init__(self, workspace, nodes=2):
        self.workspace = workspace
        self.node_names = [f"node{number}" for number in range(1, nodes + 1)]
        workspace.run("dev", "up", "-n", nodes)

    def launch_args(self, ranks):
        nodes = len(self.node_names)
        assert ranks % nodes == 0
        return ["-n", nodes, "-g", ranks // nodes]

    def daemons(self):
        return programs("dgxrun-controller") + programs("dgxrun-agent")

    def controller(self):
        (one,) = programs("dgxrun-controller")
        return one

    def agent(self, node):
        (one,) = [a for a in programs("dgxrun-agent") if node in " ".join(cmdline(a.pid))]
        return one

    def holds_sockets(self):
        return True

    def host_argv(self, node, *command):
        return list(command)

    def close(self):
        daemons = self.daemons()
        self.workspace.run("dev", "down")
        wait_gone(daemons, PROMPT_S)


class NetMode:
    """One controller and an agent per host, each in a network namespace, TLS between them."""

    name = "net"
    heartbeat_ms, node_lease_ms, isolation_ms = 200, 2000, 4000
    fence_s = isolation_ms / 1000 + PROMPT_S
    fenced_s = fence_s + FENCE_ALLOWANCE_S
    port = 7070

    def __init__(self, workspace, nodes=2):
        self.workspace = workspace
        self.network = Network(workspace.root, nodes)
        try:
            self._start(nodes)
        except BaseException:
            self.close(orderly=False)
            raise

    def _start(self, nodes):
        self.node_names = list(self.network.hosts)
        self.daemon_of = {}
        certificates = os.path.join(self.workspace.root, "pki")
        user = self.workspace.env["USER"]
        self.workspace.run("cluster", "init", certificates, "--host", HUB_ADDRESS, "--user", user)
        self.pki = certificates
        self.user_file = self._write_file(
            "user", f'[tls]\nca = "{certificates}/ca.crt"\ncert = "{certificates}/user-{user}.crt"\n'
            f'key = "{certificates}/user-{user}.key"\n'
        )
        self.start_controller()
        for node in self.node_names:
            self.start_agent(node)
        # From here on dgxrun runs on the hub and finds the cluster by its file.
        self.workspace.host = self.network.hub
        self.workspace.env["DGXRUN_CLUSTER"] = self.user_file
        self.wait_nodes(nodes)

    def _write_file(self, who, more):
        path = os.path.join(self.workspace.root, f"{who}.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f'[cluster]\nname = "net"\ncontroller = "{HUB_ADDRESS}:{self.port}"\n'
                f"[timeouts]\nheartbeat_ms = {self.heartbeat_ms}\nnode_lease_ms = {self.node_lease_ms}\n"
                f"isolation_timeout_ms = {self.isolation_ms}\n" + more
            )
        return path

    def _tls(self, who):
        return f'[tls]\nca = "{self.pki}/ca.crt"\ncert = "{self.pki}/{who}.crt"\nkey = "{self.pki}/{who}.key"\n'

    def _start_daemon(self, who, host, program, config):
        running = Running(
            host.argv(os.path.join(self.workspace.bin, program), "--config", config, cwd=self.workspace.root),
            env=self.workspace.env, cwd=self.workspace.root, out_dir=self.workspace.out,
            name=f"{who}-{len(self.workspace.running)}",
        )
        self.workspace.running.append(running)
        self.daemon_of[who] = running
        return running

    def start_controller(self):
        state = os.path.join(self.workspace.state, "controller")
        config = self._write_file(
            "controller",
            f'[controller]\nstate_dir = "{state}"\nlisten = "{HUB_ADDRESS}:{self.port}"\n' + self._tls("controller"),
        )
        return self._start_daemon("controller", self.network.hub, "dgxrun-controller", config)

    def start_agent(self, node):
        base = os.path.join(self.workspace.state, node)
        config = self._write_file(
            node,
            f'[agent]\nname = "{node}"\nstate_dir = "{base}/state"\nrun_dir = "{self.workspace.run_dir}/{node}"\n'
            f'log_dir = "{base}/logs"\nallow_root = true\n' + self._tls("agent"),
        )
        return self._start_daemon(node, self.network.hosts[node], "dgxrun-agent", config)

    def wait_nodes(self, count):
        def up():
            done = self.workspace.run("nodes", "--json", expect=None)
            return done.returncode == 0 and len(re.findall(r'"state": *"up"', done.stdout)) == count

        wait_until(up, UP_S, lambda: "\n".join(d.transcript() for d in self.daemon_of.values()))

    def launch_args(self, ranks):
        nodes = len(self.node_names)
        assert ranks % nodes == 0
        return ["-n", nodes, "-g", ranks // nodes]

    def daemons(self):
        # nsenter replaces itself with the daemon, so these are the daemons themselves.
        return [one.process for one in self.daemon_of.values()] + [
            host.process for host in (*self.network.hosts.values(), self.network.hub)
        ]

    def controller(self):
        return self.daemon_of["controller"].process

    def agent(self, node):
        return self.daemon_of[node].process

    def holds_sockets(self):
        return True

    def host_argv(self, node, *command):
        return self.network.hosts[node].argv(*command)

    def close(self, orderly=True):
        if orderly:
            for who in (*self.node_names, "controller"):
                self.daemon_of[who].popen.terminate()
            for who in (*self.node_names, "controller"):
                self.daemon_of[who].wait(UP_S)
        self.workspace.host = None
        self.workspace.env.pop("DGXRUN_CLUSTER", None)
        self.network.close()


MODES = {mode.name: mode for mode in (LocalMode, DevMode, NetMode)}


def ancestry(rank_pid):
    """shim, guard and agent (local mode: dgxrun) above a rank."""
    from harness.process import parent

    shim = parent(process(rank_pid))
    guard = parent(shim)
    return shim, guard, parent(guard)
