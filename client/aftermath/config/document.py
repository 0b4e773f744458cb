"""A run's config file: the seed's `config.toml` and everything upstream's accepts, checked before anything is sent.

Decided: defaults stand with the keys of the file, here and in the tables that it names, and nowhere else for a run.
What the program would refuse is refused here with the program's own sentence, so that a run's owner reads the same
words before a fee is paid as after.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PrivateAttr, ValidationError

from aftermath.base.bounded import Malformed, toml_value
from aftermath.base.errors import ConfigError
from aftermath.config import errors as config_errors
from aftermath.config import rules as config_rules
from aftermath.config.sources import Checkpoint, DataLocation
from aftermath.config.tables import U8, U16, U32, U64, Table
from aftermath.config.training import LearningRate, Optimizer
from aftermath.rules.limits import MAX_LEVELS
from aftermath.rules.model import marked
from aftermath.rules.state import Architecture, DataType

MAX_CONFIG_BYTES = 1 << 20
_OURS = "config/demo/config.toml of the project is one that works"
_NAME_ONE = f"Name a run's config file that you may read; {_OURS}"
ARCHITECTURES = {
    "HfLlama": Architecture.HF_LLAMA,
    "HfDeepseek": Architecture.HF_DEEPSEEK,
    "HfNanoGPT": Architecture.HF_NANOGPT,
    "HfAuto": Architecture.HF_AUTO,
}
"""As a config file says it."""
_DATA_TYPES = {"Pretraining": DataType.PRETRAINING, "Finetuning": DataType.FINETUNING}


class RunRules(Table):
    """`[config]`: the clock, the quorum and the batch of a run. Times in seconds (a `min_round_time` of 0 is none), the
    bond in lamports.
    """

    warmup_time: U64
    cooldown_time: U64
    min_round_time: U64 = 1
    max_round_train_time: U64
    round_witness_time: U64
    epoch_time: U64 = 0
    rounds_per_epoch: U32 = 0
    total_steps: U32
    init_min_clients: U16
    min_clients: U16
    witness_nodes: U16 = 0
    overlap: U8 = 1
    global_batch_size_start: U16
    global_batch_size_end: U16
    global_batch_size_warmup_tokens: U64 = 0
    verification_percent: U8 = 0
    join_bond: U64 = 0
    waiting_for_members_extra_time: U8 = 10


class Matformer(Table):
    """`[model.LLM.matformer]`: how many tiers the model has; tier k keeps the first 1/2^k of every feed-forward
    layer.
    """

    tiers: Annotated[int, Field(ge=1, le=MAX_LEVELS)] = 1


class Llm(Table):
    """`[model.LLM]`: what is trained, from which checkpoint, on which data, and how.

    `data_hash` is what `data inspect` shows of the data's files; members whose files have another are refused.
    """

    architecture: Literal["HfLlama", "HfDeepseek", "HfNanoGPT", "HfAuto"]
    data_type: Literal["Pretraining", "Finetuning"]
    max_seq_len: U32
    cold_start_warmup_steps: U32 = 0
    checkpoint: Checkpoint
    data_location: DataLocation
    data_hash: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    lr_schedule: LearningRate
    optimizer: Optimizer
    matformer: Matformer = Matformer()

    def to_chain(self) -> dict[str, Any]:
        """The program's `ModelParams`."""
        return {
            "architecture": ARCHITECTURES[self.architecture].value,
            "data_type": int(_DATA_TYPES[self.data_type]),
            "max_seq_len": self.max_seq_len,
            "cold_start_warmup_steps": self.cold_start_warmup_steps,
            "checkpoint": self.checkpoint.to_chain(),
            "data_location": self._location(),
            "lr_schedule": self.lr_schedule.to_chain(),
            "optimizer": self.optimizer.to_chain(),
        }

    def _location(self) -> dict[str, Any]:
        location = self.data_location.to_chain()
        return location | {"secondary": marked(location["secondary"], self.data_hash)}


class ModelTable(Table):
    """`[model]`: so far only language models."""

    LLM: Llm


class RunConfig(Table):
    """A whole config file."""

    config: RunRules
    model: ModelTable
    _source: str = PrivateAttr("config")
    _text: str = PrivateAttr("")

    @property
    def llm(self) -> Llm:
        """The `[model.LLM]` table."""
        return self.model.LLM

    def to_chain(self) -> dict[str, Any]:
        """The `config` and `model` parts of the program's `UpdateParams`, every field present, reals as their bits."""
        rules = self.config.model_dump() | {"max_seq_len": self.llm.max_seq_len}
        return {"config": rules, "model": self.llm.to_chain()}

    def with_data_hash(self, data_hash: str) -> RunConfig:
        """The same with the hash of the data's files, for which a long folder may leave no room. Raises ConfigError."""
        llm = self.llm.model_copy(update={"data_hash": data_hash})
        config = self.model_copy(update={"model": self.model.model_copy(update={"LLM": llm})})
        if broken := config_rules.broken(config.to_chain()):
            raise self.refused(broken)
        return config

    def refused(self, mistakes: list[config_errors.Mistake]) -> ConfigError:
        """The error that shows these mistakes with the lines of the file."""
        return _refused(self._source, self._text, mistakes)


C = TypeVar("C", bound=RunConfig)


def load_config(path: Path) -> RunConfig:
    """Read and check a config file. Raises ConfigError."""
    return load_as(path, RunConfig)


def load_as(path: Path, kind: type[C]) -> C:
    """Read and check a file of this kind. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes, which no run config is", _NAME_ONE)
        text = path.read_bytes().decode("utf-8-sig")  # editors on Windows begin a file with a byte-order mark
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}", _NAME_ONE) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not UTF-8 text, which a TOML file must be", f"Save it as UTF-8; {_OURS}"
        ) from None
    return parse_as(text, str(path), kind)


def parse_as(text: str, source: str, kind: type[C]) -> C:
    """Check the text of a file of this kind; `source` names it in errors.

    Raises ConfigError with every mistake that was found.
    """
    try:
        tables = toml_value(text)
    except Malformed as error:
        raise ConfigError(f"{source} is not valid TOML: {error}", f"Correct it there; {_OURS}") from None
    try:
        config = kind.model_validate(tables)
    except ValidationError as error:
        raise _refused(source, text, config_errors.sentences(error, kind)) from None
    if broken := config_rules.broken(config.to_chain()):
        raise _refused(source, text, broken)
    config._source, config._text = source, text
    return config


def _refused(source: str, text: str, mistakes: list[config_errors.Mistake]) -> ConfigError:
    lines = config_errors.line_numbers(text)
    said = (f"{source}:{config_errors.line_of(lines, path)}: {sentence}" for path, sentence in mistakes)
    return ConfigError("\n".join(said), f"Correct the file there; {_OURS}")
