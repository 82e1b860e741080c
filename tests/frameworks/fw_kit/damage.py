"""Damaged copies of a folder of checkpoints: every file is a hard link, but for the one that is damaged.

Times are kept: a judge must not be helped by the moment at which the test damages a file.
"""

import os
import shutil
from dataclasses import dataclass

# Cuts and holes of one file. Besides these, the bytes around its ends and around record boundaries.
SAMPLES = 10
HOLE_BYTES = 192


@dataclass
class Case:
    what: str  # "cut", "missing", "hole", "mix"
    file: str  # relative to the checkpoint
    detail: str
    folder: str  # the folder of checkpoints that holds the damaged one
    path: str  # the damaged checkpoint
    only_white_space: bool = False  # what was cut off is the line end of a text file: nothing is lost

    def __str__(self):
        return f"{self.what} {self.file} {self.detail}"


def files_of(path):
    """Relative names of a checkpoint's files, in the order in which they were last written."""
    if not os.path.isdir(path):
        return [""]
    names = []
    for folder, _, files in os.walk(path):
        names += [os.path.relpath(os.path.join(folder, name), path) for name in files]
    return sorted(names, key=lambda name: (os.stat(os.path.join(path, name)).st_mtime_ns, name))


def shift_times(path, seconds):
    """Makes a file, or all files of a folder, that much younger, as if it had been written then."""
    files = [os.path.join(path, name) for name in files_of(path)] if os.path.isdir(path) else [path]
    for path in files:
        if not os.path.islink(path):
            moved = os.stat(path).st_mtime_ns + seconds * 10**9
            os.utime(path, ns=(moved, moved))


def link_tree(source, target):
    shutil.copytree(source, target, copy_function=os.link, symlinks=True)


class Damage:
    """Makes the cases for the checkpoint `name` (relative) of `folder`, below `work`."""

    def __init__(self, folder, name, work):
        self.folder = folder
        self.name = name
        self.work = work
        self.made = 0

    def _case(self, what, file, detail):
        """A fresh tree of links, with the file taken out."""
        self.made += 1
        folder = os.path.join(self.work, f"{self.made:05d}")
        link_tree(self.folder, folder)
        case = Case(what, file, detail, folder, os.path.join(folder, self.name))
        os.unlink(os.path.join(case.path, file) if file else case.path)
        return case

    def _original(self, file):
        path = os.path.join(self.folder, self.name)
        return os.path.join(path, file) if file else path

    def _put(self, case, content, times_of):
        target = os.path.join(case.path, case.file) if case.file else case.path
        with open(target, "wb") as out:
            out.write(content)
        shutil.copystat(times_of, target)

    def missing(self):
        files = files_of(os.path.join(self.folder, self.name))
        return [self._case("missing", file, "") for file in files if file]

    def cuts(self, file):
        original = self._original(file)
        with open(original, "rb") as source:
            content = source.read()
        size = len(content)
        lengths = {size * i // SAMPLES for i in range(SAMPLES)} | {0, 1, size - 1, size - 22, size - 98}
        cases = []
        for length in sorted(one for one in lengths if 0 <= one < size):
            case = self._case("cut", file, f"to {length} of {size} bytes")
            case.only_white_space = 0 < length and content[length:].isspace()
            self._put(case, content[:length], original)
            cases.append(case)
        return cases

    def holes(self, file):
        original = self._original(file)
        with open(original, "rb") as source:
            content = source.read()
        cases = []
        span = min(HOLE_BYTES, len(content))
        for i in range(SAMPLES):
            start = (len(content) - span) * i // max(1, SAMPLES - 1)
            if not any(content[start : start + span]):
                continue
            case = self._case("hole", file, f"of {span} bytes at {start} of {len(content)}")
            self._put(case, content[:start] + bytes(span) + content[start + span :], original)
            cases.append(case)
        return cases

    def overwritten(self, later):
        """What a crash leaves while `later` (another save, as a path) is written over the checkpoint: its
        first files, in the order of writing, and the rest of the old one."""
        files = files_of(later)
        cases = []
        for count in range(1, len(files)):
            case = self._case("mix", files[count - 1], f"and {count - 1} files before it are of a later save")
            os.link(os.path.join(later, case.file), os.path.join(case.path, case.file))
            for file in files[: count - 1]:
                target = os.path.join(case.path, file)
                os.unlink(target)
                os.link(os.path.join(later, file), target)
            cases.append(case)
        return cases

    def stale(self, earlier):
        """One file is of an earlier save, as a copying tool that was stopped leaves it."""
        cases = []
        for file in files_of(os.path.join(self.folder, self.name)):
            if not file or not os.path.exists(os.path.join(earlier, file)):
                continue
            case = self._case("stale", file, "is of an earlier save")
            os.link(os.path.join(earlier, file), os.path.join(case.path, file))
            cases.append(case)
        return cases
