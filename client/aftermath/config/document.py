"""A run's config file, checked before anything is sent. It accepts every upstream `config.toml`.

A run's defaults are defined only here and in the tables that it names. What the program would
refuse is refused here with the program's own sentence, before the owner pays a fee.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, PrivateAttr, ValidationError

from aftermath.base.bounded import Malformed, toml_value
from aftermath.base.errors import ConfigError
from aftermath.config import errors as config_errors
from aftermath.config import rules as config_rules
from aftermath.config.data_sources import DataHash, DataLocationChoice
from aftermath.config.spec import ArchitectureName, DataTypeName, Spec, spec_hash
from aftermath.config.start_checkpoint import CheckpointChoice
from aftermath.config.tables import U8, U16, U32, U64, KeyLimits, Seconds, SomeSeconds, Table
from aftermath.config.training import LearningRate, OptimizerChoice
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import MAX_LEVELS, MAX_SEQ_LEN, MAX_WARMUP_TOKENS
from aftermath.rules.run import MAX_WITNESSES

MAX_CONFIG_BYTES = 1 << 20
_OURS = "config/demo/config.toml of the project is a working example"
CORRECT = f"Correct the named lines; {_OURS}"
_NAME_ONE = f"Name a readable config file of a run; {_OURS}"


class RunRules(Table):
    """`[config]`: the clock, the quorum and the batch of a run."""

    warmup_time: Seconds = Field(
        examples=[60],
        description="Maximum time for members to obtain the model before an epoch trains. It must "
        "cover the download. A warm-up ends early when all members are ready. Below `epoch_time`, "
        "if set.",
    )
    cooldown_time: SomeSeconds = Field(
        examples=[30],
        description="Maximum time for hashing, attesting and saving the model after an epoch. The "
        "cooldown ends early when all levels are attested and a checkpoint is recorded. If no "
        "member saves checkpoints, or results are audited, it takes the whole time. Audits of the "
        "last rounds need about six times a share's time.",
    )
    min_round_time: Seconds = Field(
        default=1,
        description="Minimum round duration, even if all members finish early. 0 disables it; at most "
        "`max_round_train_time`.",
    )
    max_round_train_time: SomeSeconds = Field(
        examples=[60],
        description="Maximum training time of a round. Set it to what the slowest member's share needs. A "
        "slower member misses the round, and is warned before it joins. Below `epoch_time`, if "
        "set.",
    )
    round_witness_time: SomeSeconds = Field(
        examples=[5],
        description="Maximum time for late witnesses after a quorum has attested, or after "
        "`max_round_train_time`.",
    )
    epoch_time: Seconds = Field(
        default=0,
        examples=[3600],
        description="Maximum length of an epoch. 0 sets no limit and requires `rounds_per_epoch`.",
    )
    rounds_per_epoch: Annotated[U32, KeyLimits("rounds")] = Field(
        default=0,
        examples=[20],
        description="Rounds per epoch. 0 sets no limit and requires `epoch_time`. Members join and "
        "checkpoints are saved between epochs. With 1, a member that joins a run with established "
        "members never gets a vote on the model.",
    )
    total_steps: Annotated[U32, KeyLimits("steps", least=1)] = Field(
        examples=[1000],
        description="Steps of the run. A step is a round with at least one applied result.",
    )
    init_min_clients: Annotated[U16, KeyLimits("members", least=1, most=MAX_MEMBERS)] = Field(
        examples=[3],
        description="Members that must be present before an epoch begins. At least `min_clients`.",
    )
    min_clients: Annotated[U16, KeyLimits("members", least=1, most=MAX_MEMBERS)] = Field(
        examples=[2],
        description="Minimum members of an epoch. With fewer, it ends and the run waits.",
    )
    witness_nodes: Annotated[U16, KeyLimits("members", most=MAX_WITNESSES)] = Field(
        default=0,
        description="Members elected as witnesses of a round. 0: all of them, up to 32; at most "
        "`min_clients`. Where only established members witness, 1 elects two. Few witnesses need "
        "fewer transactions, but an offline one stalls the round, and a dishonest one may be the "
        "whole committee. Dropping a member always takes as many votes as with 0. Use a small value "
        "only among members that you know.",
    )
    overlap: Annotated[U8, KeyLimits("rounds", most=1)] = Field(
        default=1,
        description="Rounds during which results are exchanged while the next round trains. 0: a "
        "round ends when its results have arrived, for SparseLoCo and for rounds that train much "
        "longer than results travel.",
    )
    global_batch_size_start: Annotated[U16, KeyLimits("sequences", least=1)] = Field(
        examples=[32],
        description="Sequences per round of all members together, at the start of the run. With "
        "SparseLoCo, use `inner_steps` times the batch of one step.",
    )
    global_batch_size_end: Annotated[U16, KeyLimits("sequences", least=1)] = Field(
        examples=[32],
        description="Sequences per round after `global_batch_size_warmup_tokens`. At least "
        "`global_batch_size_start`; if equal, the batch does not grow.",
    )
    global_batch_size_warmup_tokens: Annotated[U64, KeyLimits("tokens", most=MAX_WARMUP_TOKENS)] = (
        Field(
            default=0,
            description="Tokens over which the batch grows from its first to its last size. "
            "0: the batch has its last size from the start.",
        )
    )
    verification_percent: Annotated[
        U8, KeyLimits("percent of established members' results", most=100)
    ] = Field(
        default=0,
        description="Another member replays the drawn results, to find false ones. Newcomers' "
        "results are always drawn. At most 4 results of each class (newcomers, established) per "
        "round. 0 disables audits. Audits need `clip_grad_norm`, and epochs begin with empty optimizer "
        "states, so make them long.",
    )
    join_bond: Annotated[U64, KeyLimits("lamports")] = Field(
        default=0,
        description="Bond that a wallet locks while it is a member, and loses if it is ejected. "
        "Each member sets its own limit (`train --max-bond`).",
    )
    waiting_for_members_extra_time: Annotated[U8, KeyLimits("seconds", least=1)] = Field(
        default=10,
        description="Time to wait for more members after `init_min_clients` have joined. "
        "Must not be 0.",
    )


class Matformer(Table):
    """`[model.LLM.matformer]`: the number of tiers. Tier k keeps the first 1/2^k of every
    feed-forward layer.
    """

    tiers: Annotated[int, Field(ge=1, le=MAX_LEVELS), KeyLimits("tiers")] = Field(
        default=1,
        examples=[3],
        description="Number of model sizes that members may hold. 1: every member holds the whole model.",
    )


class Llm(Table):
    """`[model.LLM]`: what is trained, from which checkpoint, on which data, and how."""

    architecture: ArchitectureName = Field(
        examples=["HfLlama"],
        description="What kind of model the checkpoint is. HfAuto: any other causal language model of transformers.",
    )
    data_type: DataTypeName = Field(
        examples=["Pretraining"],
        description="Pretraining learns every token, Finetuning only labels. Only the data "
        "location `Preprocessed` has labels.",
    )
    max_seq_len: Annotated[U32, KeyLimits("tokens", least=1, most=MAX_SEQ_LEN)] = Field(
        examples=[512],
        description="Length of a training sequence. At least 2, and at most the model's "
        "max_position_embeddings.",
    )
    cold_start_warmup_steps: Annotated[U32, KeyLimits("steps")] = Field(
        default=0,
        description="Steps over which the learning rate rises again after a pause. They must fit into one epoch.",
    )
    checkpoint: CheckpointChoice = Field(description="The checkpoint that the run begins with.")
    data_location: DataLocationChoice = Field(description="Location of the tokens.")
    data_hash: DataHash = Field(
        default="",
        description="Hash of the data files. Members with other files are refused. If it is empty, "
        "`update-config` computes it from the data on this machine. `data inspect` shows it.",
    )
    lr_schedule: LearningRate = Field(description="The learning rate of every step.")
    optimizer: OptimizerChoice = Field(
        description="How members learn, and what they send each other."
    )
    matformer: Matformer = Field(
        default=Matformer(), description="Number of tiers that the model is cut into."
    )

    @property
    def spec(self) -> Spec:
        """The training spec: the keys that the program stores and does not compute with."""
        return Spec(**{name: getattr(self, name) for name in Spec.model_fields})

    def to_chain(self) -> dict[str, Any]:
        """Return the program's `ModelParams`. Write the spec that it names first (`write_spec`)."""
        spec = self.spec.encode()
        return self._typed() | {"spec": {"len": len(spec), "hash": spec_hash(spec)}}

    def values(self) -> dict[str, Any]:
        """Return the values that `rules` checks, valid or not."""
        return self._typed() | self.spec.values()

    def _typed(self) -> dict[str, Any]:
        return {
            "max_seq_len": self.max_seq_len,
            "cold_start_warmup_steps": self.cold_start_warmup_steps,
            "checkpoint": self.checkpoint.to_chain(),
        }


class ModelTable(Table):
    """`[model]`: so far only language models."""

    LLM: Llm = Field(description="The language model.")


class RunConfig(Table):
    """A whole config file."""

    config: RunRules = Field(description="The clock, the quorum and the batch.")
    model: ModelTable = Field(description="What is trained.")
    _source: str = PrivateAttr("config")
    _text: str = PrivateAttr("")

    @property
    def llm(self) -> Llm:
        """The `[model.LLM]` table."""
        return self.model.LLM

    def to_chain(self) -> dict[str, Any]:
        """Return the parts `config` and `model` of the program's `UpdateParams`, reals as bits."""
        return {"config": self._rules(), "model": self.llm.to_chain()}

    def _rules(self) -> dict[str, Any]:
        return self.config.model_dump() | {"max_seq_len": self.llm.max_seq_len}

    def broken_rules(self) -> list[config_errors.Mistake]:
        """Return every rule that the file breaks, of the program and of the training spec."""
        return config_rules.broken(self._rules(), self.llm.values())

    def with_data_hash(self, data_hash: str) -> RunConfig:
        """Return the config with the hash of the data's files. Raises ConfigError if a long folder
        leaves no room for it.
        """
        llm = self.llm.model_copy(update={"data_hash": data_hash})
        config = self.model_copy(update={"model": self.model.model_copy(update={"LLM": llm})})
        if broken := config.broken_rules():
            raise self.refused(broken)
        return config

    @property
    def file(self) -> Path:
        """The path from which the config was loaded, unchanged."""
        return Path(self._source)

    def refused(
        self, mistakes: list[config_errors.Mistake], fix: str = CORRECT
    ) -> config_errors.Mistaken:
        """Return the error that shows these mistakes with the lines of the file."""
        return _refused(self._source, self._text, mistakes, fix)


C = TypeVar("C", bound=RunConfig)


def load_config(path: Path) -> RunConfig:
    """Read and check a config file. Raises ConfigError."""
    return load_as(path, RunConfig)


def load_as(path: Path, kind: type[C]) -> C:
    """Read and check a file of this kind. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{path} is too large for a run config (limit {MAX_CONFIG_BYTES} bytes)", _NAME_ONE
            )
        # editors on Windows begin a file with a byte-order mark
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read the config file {path}: {error.strerror}", _NAME_ONE
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not valid UTF-8, which TOML requires", f"Save it as UTF-8; {_OURS}"
        ) from None
    return parse_as(text, str(path), kind)


def parse_as(text: str, source: str, kind: type[C]) -> C:
    """Check the text of a file of this kind; `source` names it in errors.

    Raises ConfigError with every mistake that was found.
    """
    try:
        tables = toml_value(text)
    except Malformed as error:
        raise config_errors.invalid_toml(
            source, text, str(error), f"Correct the named line; {_OURS}"
        ) from None
    try:
        config = kind.model_validate(tables)
    except ValidationError as error:
        raise _refused(source, text, config_errors.sentences(error, kind)) from None
    if broken := config.broken_rules():
        raise _refused(source, text, broken)
    config._source = source
    config._text = text
    return config


def _refused(
    source: str, text: str, mistakes: list[config_errors.Mistake], fix: str = CORRECT
) -> config_errors.Mistaken:
    lines = config_errors.line_numbers(text)
    located_mistakes = [
        config_errors.LocatedMistake(
            config_errors.line_of(lines, one.path), ".".join(one.path), one.sentence, one.code
        )
        for one in mistakes
    ]
    return config_errors.Mistaken(source, located_mistakes, fix)
