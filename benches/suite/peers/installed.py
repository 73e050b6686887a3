"""Packages of the peers, installed under target/bench/ at the versions of the files in benches/peers/."""

import filecmp
import shutil
import sys

from context import OUTPUT, ROOT, progress
from process import CommandFailed, run

SOURCES = ROOT / "benches" / "peers"
VENV = OUTPUT / "venv"
NODE = OUTPUT / "node"
INSTALL_TIMEOUT = 900


def python_program(name):
    """Returns a program of the Python packages, and installs them if necessary."""
    lock = SOURCES / "requirements.txt"
    if not _is_current(lock, VENV / "installed-lock"):
        progress("installing the Python packages of the peers")
        shutil.rmtree(VENV, ignore_errors=True)
        run([sys.executable, "-m", "venv", VENV])
        run([VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", lock], timeout=INSTALL_TIMEOUT)
        shutil.copyfile(lock, VENV / "installed-lock")
    program = VENV / "bin" / name
    if not program.exists():
        raise CommandFailed(f"the packages have no program {name}")
    return program


def python_version(package):
    return run([VENV / "bin/python", "-c", f"from importlib.metadata import version; print(version({package!r}))"]).strip()


def node_directory():
    """Returns a directory with the Node.js packages and the programs that use them."""
    lock = SOURCES / "package-lock.json"
    if not _is_current(lock, NODE / "installed-lock"):
        progress("installing the Node.js packages of the peers")
        shutil.rmtree(NODE, ignore_errors=True)
        NODE.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(SOURCES / name, NODE / name)
        run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cwd=NODE, timeout=INSTALL_TIMEOUT)
        # Downloads or compiles its native part. The scripts of all other packages are not run.
        run(["npm", "run", "install"], cwd=NODE / "node_modules/better-sqlite3", timeout=INSTALL_TIMEOUT)
        shutil.copyfile(lock, NODE / "installed-lock")
    shutil.copyfile(SOURCES / "fastify.mjs", NODE / "fastify.mjs")
    return NODE


def node_version(package):
    code = f"console.log(JSON.parse(require('fs').readFileSync('node_modules/{package}/package.json')).version)"
    return run(["node", "-e", code], cwd=NODE).strip()


def _is_current(lock, installed):
    return installed.exists() and filecmp.cmp(lock, installed, shallow=False)
