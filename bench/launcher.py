"""The command that starts ranks, as MPIRUN or the build has it: what every script here that needs several shares."""

import os
import re
import shlex
import subprocess
import sys

HOW = "name a launcher that can with MPIRUN=..., written as in a shell: MPIRUN='mpirun --oversubscribe'"


def find_pgpt(die):
    """The program: PGPT, or that of the usual build."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.realpath(os.environ.get("PGPT", os.path.join(here, "..", "build", "pgpt")))
    if not os.access(path, os.X_OK):
        die(f"{path} is missing; run 'make' first, or name the program with PGPT=...")
    return path


def find_launcher(pgpt, die):
    """Without the number of ranks. Open MPI is told that ranks may outnumber cores, and that root may start them."""
    launcher = os.environ.get("MPIRUN")
    try:
        with open(os.path.join(os.path.dirname(pgpt), "CMakeCache.txt"), encoding="utf-8") as cache:
            built_for = re.search(r"^MPIEXEC_EXECUTABLE:\w+=(.+(?<!NOTFOUND))$", cache.read(), re.MULTILINE)
            launcher = launcher or (built_for and shlex.quote(built_for.group(1)))
    except OSError:
        pass
    try:
        words = shlex.split(launcher or "") or ["mpirun"]
    except ValueError as error:
        die(f"MPIRUN='{launcher}': {error}; write it as in a shell, MPIRUN='mpirun --bind-to none'")
    try:
        version = subprocess.run([words[0], "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        die(f"cannot run {words[0]}: {error.strerror}; install MPI, or name its launcher with MPIRUN=...")
    if "Open MPI" not in version and "open-mpi" not in version:
        return words
    needed = ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    return words + [word for word in needed if word not in words]


def check_launcher(launcher, die):
    """Two processes that do nothing start, or it is said what to set instead."""
    command = launcher + ["-n", "2", sys.executable, "-c", ""]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        die(f"cannot run {launcher[0]}: {error.strerror}; install MPI, or {HOW}")
    except subprocess.TimeoutExpired:
        die(f"'{' '.join(command)}' is not done in 60 s; {HOW}")
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-600:]
        die(f"'{' '.join(launcher)}' does not start processes (exit {done.returncode}); {HOW}\n{said}")
