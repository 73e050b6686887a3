"""Goodput under more load than the capacity: an open loop, in benches/overload/."""

import subprocess

from process import CommandFailed

TITLE = "overload"
TIMEOUT = 1_800


def run(context):
    command = [context.example("overload"), "--program", context.program]
    if context.control:
        command += ["--control", context.control]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False)
    if finished.returncode != 0:
        raise CommandFailed("the overload benchmark failed")
    print(finished.stdout)
    context.result.facts["overload"] = finished.stdout.splitlines()
