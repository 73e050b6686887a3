"""Single steps of a request, without HTTP: benches/micro/."""

import json

import machine
from process import run as run_command

TITLE = "single steps of a request"
CASES = {"body": "parse the body of a create", "token": "check a token", "list": "read and encode a list of 20", "commit": "commit 64 creates"}


def run(context):
    file = context.directory / "micro.db"

    def measure(case, seconds):
        before = machine.cpu_times()
        found = json.loads(run_command([context.example("micro"), case, file, str(seconds)], timeout=seconds + 60))
        return {"us": found["seconds"] * 1e6 / found["count"], "steal": machine.steal_since(before)}

    context.rounds([(f"micro/{case}", lambda seconds, case=case: measure(case, seconds)) for case in CASES], context.settings.curve_rounds)
