"""killer.py FORMAT COUNT SEED FOLDER: kills COUNT savers of the format (fw_kit/kills.py), prints one JSON line for
each with what came of it. FOLDER keeps those with a problem."""

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
    killer = Killer(writer, folder, int(seed))
    for number in range(int(count)):
        print(json.dumps(killer.once(number)), flush=True)


if __name__ == "__main__":
    main()
