"""Benchmark of the service: `scripts/bench`. Run `scripts/bench --help`."""

import argparse
import contextlib
import datetime
import signal
import sys
import time
from pathlib import Path

import load
import machine
import parts
import report
import targets
from context import FULL, OUTPUT, QUICK, ROOT, Context, progress
from figures import Result
from load import LoadFailed
from process import CommandFailed, run
from stores import Stores

EPILOG = """parts: """ + ", ".join(f"{name} ({part.TITLE})" for name, part in parts.ALL.items())


def main():
    options = parse_options()
    # A terminated run ends its servers, as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.check:
            return check()
        if options.report:
            return publish(Result.read(options.report), options.output or ROOT / "docs")
        return measure(options)
    except (CommandFailed, LoadFailed, OSError, ValueError) as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        if (OUTPUT / "unfinished.json").exists():
            print(f"scripts/bench: the parts before are in {OUTPUT / 'unfinished.json'}, which --report takes", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measures the service against references and other servers.", epilog=EPILOG)
    parser.add_argument("--quick", action="store_true", help="smaller stores, fewer rounds and only the peers with a target; fail if a target is missed")
    parser.add_argument("--program", type=Path, help="the program to measure, instead of that of this tree")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--control", type=Path, help="another build of the program, for the part `overload`")
    parser.add_argument("--output", type=Path, help="directory of benchmarks.md; docs for a full run, otherwise target/bench")
    parser.add_argument("--report", type=Path, metavar="RESULT", help="write tables and plots of this result file, and measure nothing")
    parser.add_argument("--check", action="store_true", help="check that the documents agree with the published result file, and measure nothing")
    parser.add_argument("parts", nargs="*", metavar="PART", help="the parts to run; all of them unless given")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in parts.ALL]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; {EPILOG}")
    return options


def measure(options):
    selected = options.parts or (parts.QUICK if options.quick else parts.ALL)
    settings = QUICK if options.quick else FULL
    program = (options.program or options.build / "plantstore").resolve()
    began = time.monotonic()
    (OUTPUT / "unfinished.json").unlink(missing_ok=True)
    with Context(settings, program, (options.build / "examples").resolve(), options.control and options.control.resolve()) as context:
        facts = context.result.facts
        facts |= {"started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "quick": options.quick}
        facts |= {"machine": machine.facts(), "settings": vars(settings), "parts": []}
        facts["version"] = context.version = run([program, "--version"]).split()[-1]
        facts["wrk_threads"] = load.threads()
        before = machine.cpu_times()
        context.stores = Stores(context)
        for name in selected:
            progress(f"{parts.ALL[name].TITLE} ({time.monotonic() - began:.0f} s)")
            with context.part():
                parts.ALL[name].run(context)
            facts["parts"].append(name)
            facts["machine"]["steal_percent"] = machine.steal_since(before)
            facts["seconds"] = time.monotonic() - began
            # Kept if a later part fails.
            context.result.write(OUTPUT / "unfinished.json")
        (OUTPUT / "unfinished.json").unlink()
        facts["targets"] = targets.evaluate(context.result)
        is_complete = not options.quick and not options.parts
        return publish(context.result, options.output or (ROOT / "docs" if is_complete else OUTPUT))


def check():
    stale = report.check()
    for path in stale:
        print(f"{path} does not agree with the result file: run scripts/bench --report docs/benchmarks/result.json", file=sys.stderr)
    return 1 if stale else 0


def publish(result, output):
    """Writes the result file, tables and plots, and prints the targets. Fails for a quick run that missed one."""
    result.facts["targets"] = targets.evaluate(result)
    report.write(result, output)
    missed = 0
    for target in result.facts["targets"]:
        if target["verdict"] != targets.NOT_MEASURED:
            progress(report.target_line(target))
        missed += target["verdict"] == targets.MISSED
    progress(f"{missed} targets missed; {output / 'benchmarks.md'} has the tables and plots")
    return 1 if missed and result.facts["quick"] else 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
