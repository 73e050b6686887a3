"""Goodput under more load than the capacity: an open loop, in benches/overload/."""

import subprocess

from process import CommandFailed

TITLE = "overload"
TIMEOUT = 1_800


def run(context):
    command = [context.example("overload"), "--program", context.program]
    if context.control:
        command += ["--control", context.control]
    lines = []
    for options in [[], ["--users", "1", "--loads", "1,5"]]:
        finished = subprocess.run(command + options, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False)
        if finished.returncode != 0:
            raise CommandFailed("the overload benchmark failed")
        print(finished.stdout)
        # One table: the second run has the same heading of two lines.
        lines += finished.stdout.splitlines()[2 if lines else 0 :]
    context.result.facts["overload"] = lines
