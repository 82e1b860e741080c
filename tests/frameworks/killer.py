"""killer.py FORMAT COUNT SEED FOLDER: kills COUNT savers of the format (fw_kit/kills.py), prints a JSON list of
what came of each. FOLDER keeps those with a problem."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from fw_kit import ranks  # noqa: E402

ranks.set_environment()

import fw_formats  # noqa: E402
from fw_kit.kills import Killer  # noqa: E402

# Large enough that a save is many writes, small enough that three hundred of them are quick.
WIDTH = 96


def main():
    name, count, seed, folder = sys.argv[1:]
    writer = fw_formats.make(name, width=WIDTH)
    ranks.warm_up(writer)
    json.dump(Killer(writer, folder, int(seed)).run(int(count)), sys.stdout)


if __name__ == "__main__":
    main()
