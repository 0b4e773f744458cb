"""torch's optimizers as they are without `torch.compile`, which nothing here applies to an optimizer's step.

torch wraps `add_param_group` and `AdamW.step` so that a compiler leaves them alone. These wrappers import torch._dynamo
and hundreds of modules with it, which takes a member seconds at its start. Here what they wrap is called.
"""

from __future__ import annotations

from inspect import unwrap

import torch

add_param_group = unwrap(torch.optim.Optimizer.add_param_group)


class AdamW(torch.optim.AdamW):
    """torch's AdamW, step for step."""

    add_param_group = add_param_group
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
