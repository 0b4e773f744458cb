"""A rank other than the first. It has no access to the run, the chain or peers.

`parallel.launch` starts it. It ends when the process that started it ends for any reason.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn

import msgspec
import torch

from aftermath.base.errors import AftermathError
from aftermath.parallel.group import Join, Ranks
from aftermath.parallel.sharded import ShardedModel
from aftermath.parallel.sharded_feedback import ShardedFeedback
from aftermath.parallel.sharded_inner import ShardedInner
from aftermath.replica.exactness import set_exact
from aftermath.replica.memory import is_out_of_memory

# Seconds that a failed rank waits before it ends. If it failed because another rank ended, it must
# end later than that one, so that the first rank blames the right one.
_EXIT_DELAY = 2.0


def _end_with_the_first() -> None:
    """End this process when the first rank ends, which closes standard input."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> NoReturn:
    """Run the process. Its only argument is a `Join` as JSON.

    The exit status is ENOMEM if the rank ran out of memory.
    """
    faulthandler.enable()  # print the stack of a process that crashes in native code
    # Ctrl-C in a terminal, and its end, reach all processes. Only the first one acts on them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    join = msgspec.json.decode(sys.argv[1], type=Join)
    try:
        if join.threads:
            torch.set_num_threads(join.threads)
        set_exact()
        Ranks(join).follow((ShardedModel, ShardedFeedback, ShardedInner))
    except Exception as error:
        status = 1
        message = f"{error}\n"
        if is_out_of_memory(error):
            status = errno.ENOMEM
            message = f"out of memory: {error}\n"
        elif not isinstance(error, AftermathError):
            message = traceback.format_exc()
            time.sleep(_EXIT_DELAY)
    sys.stderr.write(f"rank {join.rank} on {join.device}: {message}")
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
