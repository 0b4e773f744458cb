"""torch's AdamW without the wrappers for `torch.compile`.

torch wraps `add_param_group` and `AdamW.step` to exclude them from compilation. The wrappers import
torch._dynamo and hundreds of modules, which delays a member's start by seconds. Steps are not
compiled here, so this module calls the wrapped functions directly.
"""

from __future__ import annotations

from inspect import unwrap

import torch

add_param_group = unwrap(torch.optim.Optimizer.add_param_group)


class AdamW(torch.optim.AdamW):
    """torch's AdamW with the same steps, without the wrappers."""

    add_param_group = add_param_group
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
