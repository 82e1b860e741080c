"""Looks for what a job or a whole test left behind."""

import os
import stat as stat_bits

from harness.cgroups import cgroups, job_ids
from harness.process import descendants, describe, reap_strays
from harness.waiting import wait_until
from harness.workspace import check_output


def sockets(folder):
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                if stat_bits.S_ISSOCK(os.lstat(path).st_mode):
                    found.append(path)
            except FileNotFoundError:
                pass
    return found


def port_is_free(mode, node, port):
    """Nobody holds the port, with or without SO_REUSEADDR: a plain bind of both families works."""
    code = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_INET6)\n"
        "s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)\n"
        "try: s.bind(('::', int(sys.argv[1])))\n"
        "except OSError as error: print(error)\n"
        "else: print('free')\n"
    )
    return check_output(mode.host_argv(node, "/usr/bin/python3", "-c", code, str(port))).strip() == "free"


class LeakChecker:
    """Made when a test begins. `allowed`: processes of pytest itself, and what a cluster consists of."""

    def __init__(self, workspace, own):
        self.workspace = workspace
        self.own = set(own)

    def _strays(self, allowed):
        reap_strays(self.workspace.known_pids())
        keep = self.own | set(allowed)
        return [one for one in descendants() if one not in keep]

    def new_cgroups(self):
        return cgroups(job_ids(self.workspace.root))

    def check_job_gone(self, mode, seconds, but=()):
        """No process, cgroup or (shim's) socket of any job is left below pytest; the mode's daemons stay.

        `but`: more processes that may live, like a dgxrun that is still running.
        """
        def strays():
            return self._strays([*mode.daemons(), *but])

        wait_until(lambda: not strays(), seconds, lambda: "processes: " + describe(strays()))
        wait_until(lambda: not self.new_cgroups(), seconds, lambda: f"cgroups: {self.new_cgroups()}")

        def job_sockets():
            return [path for path in sockets(self.workspace.run_dir) if os.path.basename(path) == "shim.sock"]

        wait_until(lambda: not job_sockets(), seconds, lambda: f"sockets: {job_sockets()}")
        if not mode.holds_sockets():
            wait_until(
                lambda: not sockets(self.workspace.root), seconds, lambda: f"sockets: {sockets(self.workspace.root)}"
            )

    def check_all_gone(self, seconds):
        """At the end of a test, its cluster included."""
        wait_until(
            lambda: not self._strays([]), seconds, lambda: "processes: " + describe(self._strays([]))
        )
        wait_until(lambda: not self.new_cgroups(), seconds, lambda: f"cgroups: {self.new_cgroups()}")
        assert not sockets(self.workspace.root), f"sockets: {sockets(self.workspace.root)}"
