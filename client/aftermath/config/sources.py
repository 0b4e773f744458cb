"""Where a run's model and data come from: `[model.LLM.checkpoint]` and `[model.LLM.data_location]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from aftermath.config.meaning import Location, Means, Repository
from aftermath.config.tables import U8, U32, BareVariant, Choice, Variant
from aftermath.rules.limits import REVISION_BYTES
from aftermath.rules.state import CheckpointKind, DataKind

TokenSize = Literal["TwoBytes", "FourBytes"]
SeedBytes = Annotated[list[U8], Field(min_length=32, max_length=32)]
_TOKEN_BYTES = {"TwoBytes": 2, "FourBytes": 4}
_NO_SEED = bytes(32)
_OWN_STATE = (
    "that members have the model from each other is the run's own state, which no owner writes; write Hub, Local or "
    "Dummy: the checkpoint to start from and to fall back on"
)

DataHash = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
"""Hash of a run's data files in hex, or empty if the owner did not give one."""


class HubCheckpoint(Variant):
    """A Hugging Face repository; without a revision its default branch."""

    repo_id: Repository = Field(
        examples=["ada/my-model"], description="The repository, as OWNER/NAME."
    )
    revision: Annotated[str, Means(bytes=REVISION_BYTES)] = Field(
        default="", description="A commit, tag or branch of it. Pin a commit where the run matters."
    )

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.HUB), "repo": self.repo_id, "revision": self.revision}


class LocalCheckpoint(BareVariant):
    """A directory every member has under the same path."""

    path: Repository = Field(
        examples=["runs/mine/model"],
        description="The directory; a relative one from where a member is started.",
    )

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.LOCAL), "repo": self.path, "revision": ""}


class DummyCheckpoint(Variant):
    """Seeded weights instead of stored ones; a directory or a Hub repository gives the model's
    shape.
    """

    repo_id: Repository = Field(
        default="",
        examples=["runs/mine/model"],
        description="A directory, or a repository as OWNER/NAME, whose config.json says the model's shape. It must be "
        "given.",
    )

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.DUMMY), "repo": self.repo_id, "revision": ""}


class CheckpointChoice(Choice):
    """The durable checkpoint a run starts from."""

    NOT_HERE: ClassVar[Mapping[str, str]] = {
        "Gcs": "the program names no checkpoint in Google Cloud Storage; copy it to the Hub and write Hub with its "
        "repo_id, or to every member and write Local with its path",
        "P2P": _OWN_STATE,
        "P2PGcs": _OWN_STATE,
    }
    Hub: HubCheckpoint | None = Field(default=None, description="A Hugging Face repository.")
    Local: LocalCheckpoint | None = Field(default=None, description="A directory of every member.")
    Dummy: DummyCheckpoint | None = Field(default=None, description="Weights made from a seed.")


class SeededShuffle(BareVariant):
    """The data is shuffled by 32 seed bytes."""

    seed: SeedBytes = Field(examples=[list(range(1, 33))], description="32 numbers from 0 to 255.")

    def to_chain(self) -> dict[str, Any]:
        return {"shuffle": 1, "shuffle_seed": bytes(self.seed)}


class NoShuffle(Variant):
    """The data is read in its own order."""

    def to_chain(self) -> dict[str, Any]:
        return {"shuffle": 0, "shuffle_seed": _NO_SEED}


class Shuffle(Choice):
    """In which order the sequences are numbered."""

    DontShuffle: NoShuffle | None = Field(default=None, description="The data's own order.")
    Seeded: SeededShuffle | None = Field(default=None, description="An order made from a seed.")


_NO_SHUFFLE = Shuffle(DontShuffle=NoShuffle())
_TOKEN_SIZE = "Bytes of a token in the files. TwoBytes hold a vocabulary of up to 65,536."
_ORDER = "In which order the sequences are trained."


def _location(
    kind: DataKind, primary: str, secondary: str = "", token_size: TokenSize = "TwoBytes"
) -> dict[str, Any]:
    return {
        "kind": int(kind),
        "token_bytes": _TOKEN_BYTES[token_size],
        "pad_zeros": 0,
        "start_index": 0,
        "num_files": 0,
        "primary": primary,
        "secondary": secondary,
        **_NO_SHUFFLE.to_chain(),
    }


class DummyData(Variant):
    """Made-up tokens."""

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.DUMMY, "")


class ServerData(BareVariant):
    """A data server's host and port."""

    address: Location = Field(
        examples=["192.168.1.5:9300"], description="The server, as HOST:PORT."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.SERVER, self.address)


class LocalData(BareVariant):
    """A token file, or a directory of them, that every member has under the same path."""

    path: Location = Field(
        examples=["runs/mine/tokens"],
        description="The file or directory; a relative one from where a member is started.",
    )
    token_size_in_bytes: TokenSize = Field(default="TwoBytes", description=_TOKEN_SIZE)
    shuffle: Shuffle = Field(default=_NO_SHUFFLE, description=_ORDER)

    def to_chain(self) -> dict[str, Any]:
        location = _location(DataKind.LOCAL, self.path, token_size=self.token_size_in_bytes)
        return location | self.shuffle.to_chain()


class SingleUrlFiles(BareVariant):
    """One token file behind one URL."""

    url: Location = Field(
        examples=["https://example.org/tokens.bin"], description="The file's URL."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.HTTP_SINGLE_URL, self.url)


class NumberedUrlFiles(Variant):
    """Token files whose URLs differ in a number: `{}` in the template, padded with zeros to
    `n_left_pad_zeros` digits.
    """

    url_template: Location = Field(
        examples=["https://example.org/tokens-{}.bin"],
        description="The URL of each, with {} where its number is.",
    )
    start_index: U32 = Field(default=0, description="Number of the first file.")
    n_left_pad_zeros: Annotated[U8, Means("digits")] = Field(
        default=0, description="Length that numbers are padded to with zeros."
    )
    num_files: Annotated[U32, Means("files", least=1)] = Field(
        examples=[8], description="How many files there are."
    )

    def to_chain(self) -> dict[str, Any]:
        numbers = {
            "pad_zeros": self.n_left_pad_zeros,
            "start_index": self.start_index,
            "num_files": self.num_files,
        }
        return _location(DataKind.HTTP_NUMBERED_FILES, self.url_template) | numbers


class GcpFiles(Variant):
    """A public Google Cloud bucket and the folder in it."""

    bucket_name: Location = Field(
        examples=["my-tokens"], description="The bucket, which everybody may read."
    )
    filter_directory: Location = Field(
        default="", examples=["fineweb"], description="The folder in it; empty: all of the bucket."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.HTTP_GCP, self.bucket_name, self.filter_directory)


class HttpLocation(Choice):
    """Which files an HTTP data location reads."""

    SingleUrl: SingleUrlFiles | None = Field(default=None, description="One file.")
    NumberedFiles: NumberedUrlFiles | None = Field(
        default=None, description="Files whose URLs differ in a number."
    )
    Gcp: GcpFiles | None = Field(default=None, description="A public Google Cloud bucket.")


class HttpData(Variant):
    """Token files over HTTP."""

    token_size_in_bytes: TokenSize = Field(default="TwoBytes", description=_TOKEN_SIZE)
    shuffle: Shuffle = Field(default=_NO_SHUFFLE, description=_ORDER)
    location: HttpLocation = Field(description="Which files.")

    def to_chain(self) -> dict[str, Any]:
        token_bytes = _TOKEN_BYTES[self.token_size_in_bytes]
        return self.location.to_chain() | {"token_bytes": token_bytes} | self.shuffle.to_chain()


class WeightedData(BareVariant):
    """The URL of a JSON list of weighted data locations."""

    url: Location = Field(
        examples=["https://example.org/mixture.json"], description="The document's URL."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.WEIGHTED_HTTP, self.url)


class PreprocessedData(BareVariant):
    """A data set that is tokenised already."""

    path: Location = Field(
        examples=["runs/mine/rows"], description="The folder of rows, which every member has."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.PREPROCESSED, self.path)


class DataLocationChoice(Choice):
    """Where the tokens are."""

    Dummy: DummyData | None = Field(default=None, description="Made-up tokens.")
    Server: ServerData | None = Field(default=None, description="A data server.")
    Local: LocalData | None = Field(default=None, description="Token files of every member.")
    Http: HttpData | None = Field(default=None, description="Token files over HTTP.")
    WeightedHttp: WeightedData | None = Field(default=None, description="A mixture of these.")
    Preprocessed: PreprocessedData | None = Field(
        default=None, description="Rows with labels, for finetuning."
    )
