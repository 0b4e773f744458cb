"""Token files behind HTTP in a process that has sent no request yet."""

import subprocess
import sys

import pytest

from faulty_web import serving

_READS = """
import sys
from aftermath.data.http import HttpClient, HttpFiles, numbered_urls
store = HttpFiles(numbered_urls(sys.argv[1], 1, 0, 40), HttpClient(pause=0.01))
print(sum(file.size for file in store.files))
"""


@pytest.mark.slow
def test_numbered_files_in_fresh_process_are_read() -> None:
    with serving() as web:
        web.files = {f"/{number}.bin": bytes(4096) for number in range(1, 41)}
        line = [sys.executable, "-c", _READS, f"{web.url}/{{}}.bin"]
        for _ in range(3):
            completed = subprocess.run(line, capture_output=True, text=True, timeout=60)
            assert completed.stdout == "163840\n", completed.stderr[-500:]
