"""run.py [--deny NAME]... [--no-v2] [--] COMMAND...: runs it, and all that it starts, as on an older kernel.

--deny NAME  the system call answers ENOSYS (seccomp), as a kernel does that has never heard of it
--no-v2      no cgroup v2 is mounted, only what there is of v1 (in a mount namespace; needs root)
"""

import argparse
import ctypes
import errno
import os
import struct
import subprocess
import sys

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


def hide_v2():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split() for line in file]
    for fields in mounts:
        if fields[fields.index("-") + 1] == "cgroup2":
            subprocess.run(["umount", fields[4]], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deny", action="append", default=[], choices=sorted(NUMBERS))
    parser.add_argument("--no-v2", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.no_v2:
        hide_v2()
    if options.deny:
        deny(options.deny)
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
