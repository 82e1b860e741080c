"""Checkpoints that the real libraries wrote: complete ones are COMPLETE, and nothing that a crash, a full disk
or a copying tool makes of them is."""

import fnmatch
import json
import os

import pytest
from conftest import run_tool
from fw_formats import FORMATS, make
from fw_kit.damage import Damage, files_of, shift_times
from fw_kit.judge import listing

# 66,000 members take a minute to write four times: tests/long. One that is overwritten has the same files.
NAMES = [name for name in FORMATS if name not in ("torch-many-members", "torch-overwrite", "dcp-overwrite")]
# Loads of the oracle, in one process.
LOAD_LIMIT_S = 300
# Two runs that saved into the same folder lie that far apart. In the future: a time of modification that could be
# true beside a time of creation that is not would be one that no file system gives.
APART_S = 1_000_000


def by_module(names):
    return [pytest.param(name, marks=pytest.mark.xdist_group(FORMATS[name][0])) for name in names]


@pytest.fixture
def saves(request, forged, tmp_path):
    return Saves(request.param, forged, tmp_path)


class Saves:
    """Two saves of one format, the newest of which is damaged."""

    def __init__(self, name, forged, work):
        self.format = make(name)
        root = forged(name, NAMES)
        self.folder = os.path.join(root, self.format.subfolder).rstrip("/")
        self.again = os.path.join(root + ".again", self.format.subfolder).rstrip("/")
        self.found = listing([self.folder])[self.folder]
        own = [one for one in self.found if not os.path.basename(one["path"]).startswith("last")]
        self.newest, self.older = own[0]["path"], own[1]["path"]
        self.name = os.path.relpath(self.newest, self.folder)
        self.damage = Damage(self.folder, self.name, str(work))

    def files(self, exempt):
        return [
            one
            for one in files_of(self.newest)
            if not any(fnmatch.fnmatch(one or self.name, pattern) for pattern in exempt)
        ]

    def passed_as_complete(self, cases, *options):
        """Those cases whose checkpoint is given the verdict of a complete one."""
        found = listing([case.folder for case in cases], *options)
        return [
            case
            for case in cases
            if any(
                one["path"] == case.path and one["verdict"] in ("COMPLETE", "WEIGHTS_ONLY")
                for one in found[case.folder]
            )
        ]


ALL = pytest.mark.parametrize("saves", by_module(NAMES), indirect=True)
# torch.save's old format is never called complete, so nothing can be mistaken for it.
VOUCHED = pytest.mark.parametrize("saves", by_module([n for n in NAMES if n != "torch-legacy"]), indirect=True)


@ALL
def test_complete(saves):
    """Each save of the run is found, with its format, and the newest comes first."""
    assert {one["verdict"] for one in saves.found} == {saves.format.complete}, saves.found
    assert {one["format"] for one in saves.found} == {saves.format.judged_as}, saves.found
    steps = [one["step"] for one in saves.found]
    assert steps == sorted(steps, reverse=True) and len(set(steps)) == 2, saves.found
    deep = listing([saves.folder], "--deep")[saves.folder]
    assert {one["verdict"] for one in deep} == {saves.format.complete}, deep


@ALL
def test_cut_off(saves):
    """Every file, cut at sampled offsets and near its end."""
    cases = [case for file in saves.files(saves.format.may_be_cut) for case in saves.damage.cuts(file)]
    passed = [case for case in saves.passed_as_complete(cases) if not case.only_white_space]
    assert cases and not passed, "\n".join(map(str, passed))


@VOUCHED
def test_missing(saves):
    """Every file, missing, while an older save has it."""
    exempt = saves.files(saves.format.may_be_missing)
    cases = [case for case in saves.damage.missing() if case.file in exempt]
    passed = saves.passed_as_complete(cases)
    assert not passed, "\n".join(map(str, passed))


@VOUCHED
def test_holes(saves):
    """Zeros instead of data, with --deep. What the judge lets pass must load with equal values: zeros between
    two members of a zip file are nobody's data."""
    cases = [case for file in saves.files(saves.format.may_have_holes) for case in saves.damage.holes(file)]
    passed = saves.passed_as_complete(cases, "--deep")
    if passed:
        paths = [saves.newest, *(case.path for case in passed)]
        lines = run_tool("forge.py", "--load", saves.format.name, *paths, limit_s=LOAD_LIMIT_S).splitlines()
        good, *others = [json.loads(line) for line in lines]
        passed = [case for case, one in zip(passed, others) if one.get("digest") != good["digest"]]
    assert not passed, "\n".join(map(str, passed))


@VOUCHED
def test_two_saves_mixed(saves):
    """A run that saves the same step again and is killed on the way: some files are new, the rest old."""
    if len(files_of(saves.newest)) < 2:
        # One file cannot be two saves: what is written over is cut off (test_cut_off).
        return
    # The files of the case are links: they have these times as long as they are judged.
    shift_times(saves.again, APART_S)
    try:
        cases = saves.damage.overwritten(os.path.join(saves.again, saves.name))
        passed = saves.passed_as_complete(cases)
    finally:
        shift_times(saves.again, -APART_S)
    untold = [case for case in passed if saves.format.mix_is_untold(case)]
    for case in untold:
        print(f"not told: {case}: {saves.format.mix_is_untold(case)}")
    passed = [case for case in passed if case not in untold]
    assert cases and not passed, "\n".join(map(str, passed))
