"""The network of any causal language model of transformers, wrapped as one of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from aftermath.model.arch.hf_auto_config import HfAutoConfig
from aftermath.model.arch.hf_auto_document import network_of
from aftermath.model.key_cache import TextCache
from aftermath.model.network import LanguageModel


class HfAuto(LanguageModel):
    """The network of one tier."""

    def __init__(self, config: HfAutoConfig, tier: int = 0) -> None:
        super().__init__(config, tier)
        inner = network_of(config.document_of(tier))
        # Modules keep their own names, so parameters are named as in a checkpoint. Checkpoints hold
        # no buffers; transformers computes them when it builds the network.
        for name, child in inner.named_children():
            self.add_module(name, child)
        object.__setattr__(self, "_inner", inner)  # not a module of ours: its children are
        # Dropout in training mode would draw from a generator that members do not share.
        self.train(False)

    @classmethod
    def of(cls, config: Any, tier: int, params: Mapping[str, Tensor]) -> Self:
        """Return a network on these tensors (no copy). Raises RuntimeError if they do not fit."""
        model = cls(config, tier)
        inner: Any = model._inner
        expected_shapes = {
            name: tuple(parameter.shape) for name, parameter in model.named_parameters()
        }
        if expected_shapes != {name: tuple(tensor.shape) for name, tensor in params.items()}:
            raise RuntimeError("names or shapes of the tensors do not match this network")
        # a tied tensor has one name here
        inner.load_state_dict(dict(params), strict=False, assign=True)
        inner.tie_weights()
        return model.requires_grad_(True)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever the caller asks for."""
        del mode
        return super().train(False)

    can_recompute = False

    def body(self, input_ids: Tensor, cache: TextCache | None = None) -> Tensor:
        if cache is not None:
            raise ValueError("models of transformers do not support a key cache here")
        inner: Any = self._inner
        logits: Tensor = inner(input_ids=input_ids, use_cache=False).logits  # [B, T, V]
        return logits

    def head(self, hidden: Tensor) -> Tensor:
        return hidden  # logits already
