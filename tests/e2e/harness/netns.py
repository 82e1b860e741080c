"""Hosts as anonymous network namespaces: they end with the process that holds them, so with pytest.

    hub (bridge, HUB_ADDRESS: controller and clients)
     +-- node1 (eth0, 10.77.0.11)
     +-- node2 (eth0, 10.77.0.12)
"""

import ctypes
import os
import socket
import subprocess

from harness.process import Process, die_with_parent, process
from harness.workspace import check_output
from harness.waiting import wait_until

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)

HUB_ADDRESS = "10.77.0.1"


def _checked(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


class Host:
    """A holder process in a network, mount and host-name namespace of its own."""

    def __init__(self, name, hosts_file):
        self.name = name

        def enter():
            die_with_parent()
            _checked(_libc.unshare(_CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWUTS), "unshare")
            _checked(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "make / private")
            _checked(_libc.mount(os.fsencode(hosts_file), b"/etc/hosts", None, _MS_BIND, None), "bind /etc/hosts")
            socket.sethostname(name)

        # cat ends when its input does, which is when pytest ends; the death signal is a second net.
        self.holder = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=enter
        )
        self.process: Process = process(self.holder.pid)
        self.ip("link", "set", "lo", "up")

    def argv(self, *command, cwd="/"):
        """The command, run on this host. Entering a mount namespace leaves one in its root, hence the cd."""
        enter = ["nsenter", "-t", str(self.holder.pid), "-n", "-m", "-u", "--"]
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', cwd, *command]

    def ip(self, *words):
        return check_output(self.argv("ip", *words))

    def close(self):
        self.holder.stdin.close()
        self.holder.kill()
        self.holder.wait()


class Network:
    """A hub and `nodes` hosts behind its bridge."""

    def __init__(self, folder, nodes):
        names = [f"node{number}" for number in range(1, nodes + 1)]
        self.addresses = {name: f"10.77.0.{11 + i}" for i, name in enumerate(names)}
        hosts_file = os.path.join(folder, "hosts")
        with open(hosts_file, "w", encoding="ascii") as file:
            file.write(f"127.0.0.1 localhost\n::1 localhost\n{HUB_ADDRESS} hub\n")
            file.writelines(f"{address} {name}\n" for name, address in self.addresses.items())
        self.hub = Host("hub", hosts_file)
        self.hosts = {name: Host(name, hosts_file) for name in names}
        self.hub.ip("link", "add", "br0", "type", "bridge")
        self.hub.ip("addr", "add", f"{HUB_ADDRESS}/24", "dev", "br0")
        self.hub.ip("link", "set", "br0", "up")
        for name, host in self.hosts.items():
            check_output([
                "ip", "link", "add", "eth0", "netns", str(host.holder.pid),
                "type", "veth", "peer", "name", f"to-{name}", "netns", str(self.hub.holder.pid),
            ])
            host.ip("addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            host.ip("link", "set", "eth0", "up")
            self.hub.ip("link", "set", f"to-{name}", "master", "br0", "up")
        for name, host in self.hosts.items():
            wait_until(lambda h=host: "state UP" in h.ip("link", "show", "eth0"), 5, f"{name}: eth0 up")

    def close(self):
        for host in (*self.hosts.values(), self.hub):
            host.close()
