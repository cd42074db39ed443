# SPDX-License-Identifier: Apache-2.0
"""PPO end to end beside Stable-Baselines3, rsl_rl and a plain loop, in turn in one run, and random actions.

python benchmarks/ppo_vs_peers.py [--tasks halfcheetah pushcube] [--rounds 3] [--iterations 10]

Needs ``pip install 'm2flow[maniskill]' 'gymnasium[mujoco]' stable-baselines3 rsl-rl-lib``. ``control_side.py`` says
what each side does. Each is a process of its own; a round has all of them one after another, and ratios are medians of
those within a round, so that other work on the machine meets all sides.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

SIDE = Path(__file__).with_name("control_side.py")
PEERS = ("sb3", "rsl_rl", "cleanrl")
SIDES = ("m2flow", *PEERS, "random")


def measured(side: str, task: str, *, iterations: int) -> float:
    """Environment steps per second."""
    command = [sys.executable, str(SIDE), side, task, "--iterations", str(iterations)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{side} on {task} failed:\n{found.stderr[-2000:]}")
    lines = [line for line in found.stdout.splitlines() if line.startswith('{"steps_per_s"')]
    return json.loads(lines[-1])["steps_per_s"]


def main() -> None:
    """All rounds of all tasks, and a table of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["halfcheetah", "pushcube"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10)
    given = parser.parse_args()
    console = Console(width=110)
    for task in given.tasks:
        rounds = [{s: measured(s, task, iterations=given.iterations) for s in SIDES} for _ in range(given.rounds)]
        table = Table("side", "steps/s, median", "m2flow is so many times faster", title=task)
        for side in SIDES:
            ratio = statistics.median(one["m2flow"] / one[side] for one in rounds)
            table.add_row(side, f"{statistics.median(one[side] for one in rounds):,.0f}", f"{ratio:.2f}")
        best = statistics.median(one["m2flow"] / max(one[peer] for peer in PEERS) for one in rounds)
        console.print(table, f"against the best peer of each round: {best:.2f}")


if __name__ == "__main__":
    main()
