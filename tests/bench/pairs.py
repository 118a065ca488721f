"""Times commands one after the other, again and again: ``pairs.py N COMMAND /// COMMAND``.

Runs on a host of a cluster, so it stands alone. Prints a JSON list a command: how
long each run took, in seconds.
"""

import json
import os
import sys
import time


def main(rounds: int, commands: list[list[str]]) -> None:
    times: list[list[float]] = [[] for _ in commands]
    for number in range(rounds + 1):
        for command, taken in zip(commands, times, strict=True):
            begun = time.perf_counter()
            pid = os.posix_spawnp(command[0], command, os.environ)
            _, status = os.waitpid(pid, 0)
            if status != 0:
                sys.exit(f"{command}: status {status}")
            if number > 0:  # the first round reads what the others find in memory
                taken.append(time.perf_counter() - begun)
    print(json.dumps(times))


def split(words: list[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "///":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


if __name__ == "__main__":
    main(int(sys.argv[1]), split(sys.argv[2:]))
