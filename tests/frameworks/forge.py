"""Checkpoints of the real libraries.

    forge.py FOLDER FORMAT...         writes steps 10 and 20 of each format to FOLDER/FORMAT, and a second
                                      run of the same to FOLDER/FORMAT.again
    forge.py --load FORMAT PATH...    loads checkpoints; one JSON line each: {"path", "step", "digest"}, or
                                      {"path", "error"}
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fw_kit import loading, ranks  # noqa: E402

ranks.set_environment()

import fw_formats  # noqa: E402
from fw_kit.damage import shift_times  # noqa: E402

EVERY = 10
LAST = 20
APART_S = 600


def write(folder, name):
    writer = fw_formats.make(name)
    writer.imports()
    for target in (name, name + ".again"):
        path = os.path.join(folder, target)
        os.makedirs(path)
        ranks.run(writer.world, writer.train, path, EVERY, LAST, log=path + ".log")
        # The earlier save of a run lies further back: steps of these models take a millisecond.
        for found in os.listdir(os.path.join(path, writer.subfolder)):
            if writer.is_step(found, EVERY):
                shift_times(os.path.join(path, writer.subfolder, found), -APART_S)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", metavar="FORMAT", choices=fw_formats.FORMATS)
    parser.add_argument("arguments", nargs="+")
    args = parser.parse_args()
    if not args.load:
        folder, *names = args.arguments
        for name in names:
            write(folder, name)
        return
    writer = fw_formats.make(args.load)
    writer.imports()
    for path in args.arguments:
        print(json.dumps(loading.in_child(writer, path)), flush=True)


if __name__ == "__main__":
    main()
