"""A host of its own for one test, in namespaces that end with it: there, small disks may be mounted that fill up."""

import os

from harness.netns import Host
from harness.workspace import check_output


class Box:
    """From here on the workspace's dgxrun runs in it. The test sees its files through path()."""

    def __init__(self, workspace):
        hosts_file = os.path.join(workspace.root, "hosts")
        with open(hosts_file, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n::1 localhost\n127.0.0.1 box\n")
        self.workspace = workspace
        self.host = Host("box", hosts_file)
        workspace.host = self.host

    def path(self, path):
        return f"/proc/{self.host.process.pid}/root{path}"

    def small_disk(self, folder, size="256k"):
        """A tmpfs of this size over a folder (made if missing)."""
        os.makedirs(folder, exist_ok=True)
        check_output(self.host.argv("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", folder))
        return folder

    def fill(self, folder, leave=0):
        """Fills the disk but for `leave` bytes with a file; returns its path as seen from here."""
        ballast = os.path.join(self.path(folder), "ballast")
        with open(ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
            if leave:
                file.truncate(max(0, file.tell() - leave))
        return ballast

    def close(self):
        self.workspace.host = None
        self.host.close()
