"""Test that only a few files use Unix-only modules."""

from __future__ import annotations

import ast

from docs.sources import CLIENT, parsed

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
NAMES = {
    "os": {
        "fchmod",
        "fdatasync",
        "fork",
        "getpgrp",
        "killpg",
        "mkfifo",
        "pread",
        "setpgrp",
        "setsid",
        "sysconf",
    }
    | {"tcgetpgrp", "O_NONBLOCK", "statvfs", "sched_getaffinity", "nice"},
    "signal": {
        "SIGALRM",
        "SIGCHLD",
        "SIGHUP",
        "SIGKILL",
        "SIGTTOU",
        "SIGUSR1",
        "SIGUSR2",
        "alarm",
        "pthread_sigmask",
    },
    "loop": {"add_reader", "add_signal_handler"},
}
PLACES = {
    "model/tokenizer_process.py": "bounds its own memory and time, where that can be",
    "base/signals.py": "tries, and has another way",
    "parallel/worker.py": "skipped on Windows, which has no SIGHUP",
    "testnet/watchdog.py": "groups of processes, and their end with their parent",
    "testnet/panes.py": "tmux",
    "ui/terminal/terminal.py": "the screen, which is not drawn elsewhere",
}


def unix_names(tree: ast.AST) -> set[str]:
    """Return the Unix-only names that a file uses. Names read by getattr are not counted."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module)} & MODULES
            names |= {alias.name for alias in node.names} & NAMES.get(str(node.module), set())
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names |= {node.attr} & NAMES.get(node.value.id, set())
        elif isinstance(node, ast.Call):
            match node:
                case ast.Call(ast.Attribute(ast.Name("os"), "kill"), [_, ast.Constant(0)]):
                    names.add("os.kill(…, 0)")  # on Windows this ends the process
    return names


def test_unix_only_calls_are_found() -> None:
    for source, names in (
        ("import fcntl\nfrom os import fork", {"fcntl", "fork"}),
        (
            "os.killpg(1, signal.SIGKILL)\nloop.add_reader(2, f)",
            {"killpg", "SIGKILL", "add_reader"},
        ),
        ("os.kill(pid, 0)\nos.kill(pid, signal.SIGINT)", {"os.kill(…, 0)"}),
        ("import os\nos.getpid()\ngetattr(os, 'fdatasync', os.fsync)(1)", set()),
    ):
        assert unix_names(ast.parse(source)) == names, source


def test_unix_only_calls_stand_in_listed_files() -> None:
    names_by_file = {str(file.relative_to(CLIENT)): unix_names(tree) for file, tree in parsed()}
    assert {name for name, names in names_by_file.items() if names} == set(PLACES), {
        n: w for n, w in names_by_file.items() if w
    }
