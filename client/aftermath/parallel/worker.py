"""A rank that obeys the first one: it knows of no run, chain or peer.

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
    Begin,
    Gather,
    Hold,
    Join,
    Make,
    Measure,
    OfMoments,
    TrainMicroBatches,
)
from aftermath.parallel.feedback_shard import Shard
from aftermath.parallel.group import Ranks
from aftermath.parallel.inner_shard import InnerShard
from aftermath.parallel.sharded import ShardedModel, is_short
from aftermath.replica.exactness import set_exact

# seconds for the first rank to name who ended first; who fails because of another ends after that
# one
_LINGER = 2.0


def follow(ranks: Ranks) -> NoReturn:
    """Do as the first rank says."""
    model, micro, share, shard, inner = None, 1, torch.empty(0), None, None
    while True:
        order = ranks.hear()
        if isinstance(order, Make):
            model = ShardedModel(config_of(order.config), order.tier, ranks.mesh, bf16=order.bf16)
            continue
        if isinstance(order, Hold):
            shard = inner = None  # there is no room for two
            schema = Schema.from_json(order.schema)
            shard = Shard(ranks, schema, order.tier)
            inner = InnerShard(ranks, schema, order.tier) if schema.optimizer.moments else None
            continue
        if isinstance(order, OfMoments):
            assert inner is not None, "of moments that there are not"
            inner.follow(order)
            continue
        assert model is not None, "the first order is to make the network"
        match order:
            case Begin(shape, micro, recompute):
                share = ranks.sequences(torch.empty(shape, dtype=torch.int64))
                if inner is None:
                    model.begin(None, recompute=recompute)
                else:
                    inner.begin()
                    model.begin(None, recompute=recompute, keep=inner.keep_weight)
            case Measure():
                ranks.figures(model.measure(share, ranks.reserved))
            case TrainMicroBatches(first):
                model.step(share, micro, first)
            case Gather(steps):
                if not is_short(ranks.figures(model.losses(steps))):
                    for name, gradient in model.gradients():
                        if inner is not None:
                            inner.keep_gradient(name, gradient)
            case _:
                assert shard is not None, "of a state that there is not yet"
                given = [ranks.receive(*of, 0) for of in shard.plan.takes(order, ranks.rank)]
                for told in shard.perform(order, given):
                    ranks.send(told, 0)


def _end_with_the_first() -> None:
    """Standard input is a pipe that closes with the process which started this one."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> NoReturn:
    """The process. Its only argument is a `Join` as JSON."""
    faulthandler.enable()  # else nobody knows what a process did whose memory was found damaged
    # Ctrl-C in a terminal reaches all processes: the first one decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    join = msgspec.json.decode(sys.argv[1], type=Join)
    try:
        if join.threads:
            torch.set_num_threads(join.threads)
        set_exact()
        follow(Ranks(join))
    except (AftermathError, torch.OutOfMemoryError) as error:
        said = f"{error}\n"
    except Exception:
        said = traceback.format_exc()
        time.sleep(_LINGER)
    sys.stderr.write(f"rank {join.rank} on {join.device}: {said}")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
