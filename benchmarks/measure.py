"""Run the benchmarks and keep their figures, for the documentation to quote.

python benchmarks/measure.py            run all of them: half an hour on two cores
python benchmarks/measure.py demo p2p   run only these
make docs                               quote the new figures in the pages
"""

# What is kept:
# - `benchmarks/measured/NAME.json` contains the command, the machine, and the benchmark's own
#   JSON.
# - A benchmark that fails leaves its file unchanged.

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "measured"
COMMANDS = {
    "data": "python benchmarks/data.py --json",
    "memory": "python benchmarks/memory.py --json",
    "step": "python benchmarks/step.py --json",
    "ranks": "python benchmarks/ranks.py --json",
    "worth": "python benchmarks/worth.py --json",
    "heterogeneity": "python benchmarks/heterogeneity.py --json",
    "rolling": "python benchmarks/rolling.py --json",
    "ideas": "python benchmarks/ideas.py --json",
    "codec": "python benchmarks/codec.py --json",
    "roots": "python benchmarks/state_roots.py --json",
    "spinning": "python benchmarks/spinning.py --json",
    "draft": "python benchmarks/draft.py --json",
    "chain": "python benchmarks/chain.py --json",
    "distro": "python benchmarks/distro.py --json",
    "localnet": "python benchmarks/localnet.py --transactions 5000 --json",
    "central": "python benchmarks/server_pace.py --json",
    "p2p": "python benchmarks/p2p.py --json",
    "wan": "python benchmarks/wan.py --slower 16 --json",
    "round": "python benchmarks/round.py --members 3 8 --json",
    "hostile": "python -m pytest -m nightly tests/hostile",
    "demo": "python -m aftermath.demo --engine embedded",
}
"""Command of each file. Each prints one JSON object; the last two write a report instead."""
NEED_ROOT = {"wan"}
ON_A_GPU = {
    "gpu": "python benchmarks/gpu.py",
    "spread": "python benchmarks/audit_distance.py --device cuda --moments kept --keep",
}
"""Measurements outside the default set. Each needs a GPU and writes its own file."""
BY_ITSELF = {
    "audits": "OMP_WAIT_POLICY=PASSIVE python benchmarks/audits.py --keep",
    "audit-cost": "OMP_WAIT_POLICY=PASSIVE python benchmarks/audit_cost.py --keep",
    "spread-bf16": "OMP_WAIT_POLICY=PASSIVE python benchmarks/audit_distance.py --precision bf16 "
    "--moments kept --steps 4 --tokens 64 --keep",
}
"""Long measurements outside the default set. Each writes its own file."""
HOSTILE_AUDITS = "python benchmarks/hostile_audits.py --seconds 45 --json"
"""Command of the figures about audits in the file `hostile`."""


def main() -> int:
    """Run the named benchmarks. Return 1 if any of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(COMMANDS)}")
    everything = [name for name in COMMANDS if name not in NEED_ROOT or os.geteuid() == 0]
    names = parser.parse_args().names or everything
    if unknown := sorted(set(names) - set(COMMANDS)):
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(COMMANDS)}")
    failed = [name for name in names if not keep(name)]
    return 1 if failed else 0


def keep(name: str) -> bool:
    """Run a benchmark and write its file. Return whether it succeeded."""
    load = os.getloadavg()[0]
    print(f"{name}: {COMMANDS[name]}", file=sys.stderr, flush=True)
    special = {"demo": report_of_demo, "hostile": table_of_hostile}
    figures = special[name]() if name in special else printed_by(COMMANDS[name])
    if figures is None:
        print(f"error: {name} failed; its file stays as it was", file=sys.stderr)
        return False
    write(name, COMMANDS[name], load, figures)
    return True


def write(name: str, command: str, load: float, figures: Any) -> None:
    """Write a command's figures. `load` is the machine's load average before it ran."""
    kept = {
        "command": command,
        "machine": machine(),
        "load_before": round(load, 2),  # 0 is an idle machine; under load, speeds are lower bounds
        "figures": figures,
    }
    MEASURED.mkdir(exist_ok=True)
    (MEASURED / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


def machine() -> str:
    """Return what a file says of the machine."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"


def printed_by(line: str, seconds: float | None = None) -> Any:
    """Return the JSON that a benchmark prints, or None if it fails or exceeds `seconds`."""
    command = [sys.executable, *shlex.split(line)[1:]]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f"error: {line} took longer than {seconds:.0f} s", file=sys.stderr, flush=True)
        return None
    return json.loads(done.stdout) if done.returncode == 0 else None


def report_of_demo(*options: str) -> Any:
    """Run a demo in a new folder, and return its report, or None if it failed."""
    with tempfile.TemporaryDirectory(prefix="aftermath-demo-") as folder:
        place = Path(folder) / "demo"
        line = [sys.executable, *shlex.split(COMMANDS["demo"])[1:], *options, "--dir", str(place)]
        done = subprocess.run(line, cwd=ROOT, stdout=sys.stderr)
        return (
            json.loads((place / "demo-report.json").read_text()) if done.returncode == 0 else None
        )


def table_of_hostile() -> Any:
    """Run all attacks and return the figures, or None if a limit that was met before is missed."""
    done = subprocess.run(
        [sys.executable, *shlex.split(COMMANDS["hostile"])[1:]], cwd=ROOT, stdout=sys.stderr
    )
    load = os.getloadavg()[0]
    audits = printed_by(HOSTILE_AUDITS)
    if done.returncode != 0 or audits is None:
        return None
    rows = json.loads((ROOT / "runs" / "hostile.json").read_text())
    return rows | audits_of_hostile(HOSTILE_AUDITS, load, audits)


def audits_of_hostile(command: str, load: float, audits: dict[str, Any]) -> dict[str, Any]:
    """Return what `benchmarks/hostile_audits.py` measured, with its command and machine."""
    measured = {
        "command": command,
        "machine": machine(),
        "load_before": round(load, 2),
    }
    return audits | {"audits_measured": measured}


def keep_hostile_audits(load: float, audits: dict[str, Any]) -> None:
    """Replace the figures about audits that this process measured, in the file `hostile`."""
    script = Path(sys.argv[0]).resolve().relative_to(ROOT)
    command = shlex.join(["python", str(script), *sys.argv[1:]])
    file = MEASURED / "hostile.json"
    kept = json.loads(file.read_text())
    kept["figures"] |= audits_of_hostile(command, load, audits)
    file.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
