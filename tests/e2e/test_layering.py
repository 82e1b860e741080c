"""The dependency rules of the design, read from the #include lines; and the size caps of the house style."""

import os
import re
import subprocess

import pytest

from harness.workspace import REPOSITORY

# folder -> (own folders it may include, libraries it may not)
RULES = {
    "controller/core": ({"proto", "controller/core", "launcher/binding"}, ("grpc", "sqlite3", "spdlog", "sys/", "unistd.h", "thread", "fcntl.h")),
    "controller": ({"proto", "controller", "controller/core", "launcher/base", "launcher/binding"}, ()),
    "agent": ({"proto", "agent", "launcher", "launcher/base", "launcher/binding", "launcher/topology"}, ()),
    "launcher/base": ({"proto", "launcher/base"}, ("grpc",)),
    # Pure, like the core, which plans by it.
    "launcher/binding": ({"proto", "launcher/binding"}, ("grpc", "sqlite3", "spdlog", "sys/", "unistd.h", "thread", "fcntl.h", "hwloc")),
    "launcher/topology": ({"proto", "launcher/base", "launcher/binding", "launcher/topology"}, ("grpc", "spdlog")),
    "launcher": ({"proto", "launcher", "launcher/base", "launcher/binding"}, ("grpc", "spdlog")),
    "cli": ({"proto", "cli", "agent", "controller", "controller/core", "launcher", "launcher/base", "launcher/binding", "launcher/topology"}, ()),
    "proto": ({"proto"}, ("spdlog",)),
}
# The judge's pure parts (messages and abseil only), by which the core decides too.
PURE = {"agent/ckpt/format.h", "agent/ckpt/keep_rule.h", "agent/ckpt/merge.h", "agent/ckpt/reshard.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def sources():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.h", "*.cc"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.split()
    return [path for path in listed if os.path.exists(os.path.join(REPOSITORY, path))]


def text_of(path):
    with open(os.path.join(REPOSITORY, path), encoding="utf-8") as file:
        return file.read()


def folder_of(path):
    """The longest folder of RULES that holds this path; None for libraries and tests."""
    found = [folder for folder in RULES if path.startswith(folder + "/")]
    return max(found, key=len) if found else None


@pytest.mark.parametrize("folder", RULES)
def test_includes_point_one_way(folder):
    allowed, forbidden = RULES[folder]
    files = [path for path in sources() if folder_of(path) == folder]
    assert files
    wrong = []
    for path in files:
        for name in INCLUDE.findall(text_of(path)):
            target = folder_of(name)
            if target is not None and target not in allowed and not (folder == "controller/core" and name in PURE):
                wrong.append(f"{path} includes {name}")
            if target is None and name.startswith(forbidden):
                wrong.append(f"{path} includes {name}")
    assert not wrong, "\n".join(wrong)


def test_only_one_file_names_fork_and_kill():
    """launcher/base/sys.cc is the seam; spawn_child.cc is the child's half of a fork."""
    calls = re.compile(r"(?<![\w:.>])(?:::)?(fork|vfork|clone3|waitid|waitpid|kill|killpg)\(")
    comment = re.compile(r"//.*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"")
    wrong = []
    for path in sources():
        if not path.startswith("launcher/") or path in ("launcher/base/sys.cc", "launcher/base/sys_real.cc"):
            continue
        found = calls.findall(comment.sub("", text_of(path)))
        if found:
            wrong.append(f"{path}: {', '.join(sorted(set(found)))}")
    assert not wrong, "\n".join(wrong)


def test_no_file_is_too_long():
    long = []
    for path in sources():
        limit = 1000 if path.startswith("tests/") else 800
        lines = text_of(path).count("\n")
        if lines > limit:
            long.append(f"{path}: {lines} lines, at most {limit}")
    assert not long, "\n".join(long)


def test_no_file_is_called_utils():
    assert [path for path in sources() if "util" in os.path.basename(path)] == []
