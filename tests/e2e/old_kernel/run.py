"""run.py [--deny NAME]... [--hide ENDING]... [--library FILE] [--no-v2] [--] COMMAND...: runs it, and all that
it starts, as on an older kernel.

--deny NAME    the system call answers ENOSYS (seccomp), as a kernel does that has never heard of it
--hide ENDING  files whose paths end so are not there, by way of --library (libhide_files.so)
--no-v2        no cgroup v2 is mounted, only what there is of v1

The last two need root: they change mounts, in a namespace of the command. A library cannot be preloaded by the
environment, since shims are started with an empty one; /etc/ld.so.preload does it, in an /etc of the command's own.
"""

import argparse
import ctypes
import errno
import os
import shutil
import struct
import subprocess
import sys
import tempfile

# Numbers since 5.1 are the same on all architectures.
NUMBERS = {"pidfd_send_signal": 424, "pidfd_open": 434, "clone3": 435, "close_range": 436, "openat2": 437,
           "faccessat2": 439}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
LOAD_NUMBER, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
CLONE_NEWNS = 0x00020000


def deny(names):
    libc = ctypes.CDLL(None, use_errno=True)
    code = [(LOAD_NUMBER, 0, 0, 0)]
    for name in names:
        code += [(JUMP_EQUAL, 0, 1, NUMBERS[name]), (RETURN, 0, 0, RET_ERRNO | errno.ENOSYS)]
    code.append((RETURN, 0, 0, RET_ALLOW))
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters))
    for call in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def own_mounts():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def hide_v2():
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split() for line in file]
    for fields in mounts:
        if fields[fields.index("-") + 1] == "cgroup2":
            subprocess.run(["umount", fields[4]], check=True)


def hide_files(endings, library):
    place = tempfile.mkdtemp()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    etc = os.path.join(place, "etc")
    shutil.copytree("/etc", etc, symlinks=True)
    with open(os.path.join(etc, "dgxrun-test-hide"), "w", encoding="utf-8") as file:
        file.write(":".join(endings))
    with open(os.path.join(etc, "ld.so.preload"), "w", encoding="utf-8") as file:
        file.write(library + "\n")
    subprocess.run(["mount", "--bind", etc, "/etc"], check=True)
    subprocess.run(["umount", "-l", place], check=True)
    os.rmdir(place)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deny", action="append", default=[], choices=sorted(NUMBERS))
    parser.add_argument("--hide", action="append", default=[])
    parser.add_argument("--library")
    parser.add_argument("--no-v2", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.no_v2 or options.hide:
        own_mounts()
    if options.no_v2:
        hide_v2()
    if options.hide:
        hide_files(options.hide, options.library)
    if options.deny:
        deny(options.deny)
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
