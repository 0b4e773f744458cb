"""A rank that runs the first rank's commands. It has no access to the run, the chain or peers.

`parallel.launch` starts it. It ends when the process that started it ends for any reason.
"""

from __future__ import annotations

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
from aftermath.model.architectures import config_of
from aftermath.optim.schema import Schema
from aftermath.parallel.commands import (
    BeginShare,
    BuildNetwork,
    Gather,
    HoldState,
    Join,
    Measure,
    MomentCommand,
    TrainMicroBatches,
)
from aftermath.parallel.feedback_shard import FeedbackShard
from aftermath.parallel.group import Ranks
from aftermath.parallel.inner_shard import InnerShard
from aftermath.parallel.sharded import ShardedModel, any_out_of_memory
from aftermath.replica.exactness import set_exact

# Seconds that a failed rank waits before it ends. If it failed because another rank ended, it must
# end later than that one, so that the first rank blames the right one.
_LINGER = 2.0


def follow(ranks: Ranks) -> NoReturn:
    """Run the commands of the first rank."""
    model: ShardedModel | None = None
    shard: FeedbackShard | None = None
    inner: InnerShard | None = None
    share = torch.empty(0)
    micro = 1
    while True:
        command = ranks.receive_command()
        if isinstance(command, BuildNetwork):
            model = ShardedModel(
                config_of(command.config), command.tier, ranks.mesh, bf16=command.bf16
            )
            continue
        if isinstance(command, HoldState):
            # free the old state first, because two do not fit into memory
            shard = None
            inner = None
            schema = Schema.from_json(command.schema)
            shard = FeedbackShard(ranks, schema, command.tier)
            inner = InnerShard(ranks, schema, command.tier) if schema.optimizer.moments else None
            continue
        if isinstance(command, MomentCommand):
            assert inner is not None, "received a command about moments, but the optimizer has none"
            inner.follow(command)
            continue
        assert model is not None, "the first command must build the network"
        match command:
            case BeginShare(shape, micro, recompute):
                share = ranks.broadcast_sequences(torch.empty(shape, dtype=torch.int64))
                if inner is None:
                    model.begin(None, recompute=recompute)
                else:
                    inner.begin()
                    model.begin(None, recompute=recompute, keep=inner.keep_weight)
            case Measure():
                ranks.gather_figures(model.measure(share, ranks.reserved))
            case TrainMicroBatches(first):
                model.step(share, micro, first)
            case Gather(steps):
                if not any_out_of_memory(ranks.gather_figures(model.losses(steps))):
                    for name, gradient in model.gradients():
                        if inner is not None:
                            inner.keep_gradient(name, gradient)
            case _:
                assert shard is not None, "received a command about a state before it was allocated"
                tensors = [ranks.receive(*of, 0) for of in shard.plan.takes(command, ranks.rank)]
                for reply in shard.perform(command, tensors):
                    ranks.send(reply, 0)


def _end_with_the_first() -> None:
    """End this process when the first rank ends, which closes standard input."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> NoReturn:
    """Run the process. Its only argument is a `Join` as JSON."""
    faulthandler.enable()  # print the stack of a process that crashes in native code
    # Ctrl-C in a terminal reaches all processes. Only the first one acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    join = msgspec.json.decode(sys.argv[1], type=Join)
    try:
        if join.threads:
            torch.set_num_threads(join.threads)
        set_exact()
        follow(Ranks(join))
    except (AftermathError, torch.OutOfMemoryError) as error:
        message = f"{error}\n"
    except Exception:
        message = traceback.format_exc()
        time.sleep(_LINGER)
    sys.stderr.write(f"rank {join.rank} on {join.device}: {message}")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
