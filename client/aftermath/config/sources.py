"""Where a run's model and data come from: `[model.LLM.checkpoint]` and `[model.LLM.data_location]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from aftermath.config.tables import U8, U32, BareVariant, Choice, Variant
from aftermath.rules.state import CheckpointKind, DataKind

TokenSize = Literal["TwoBytes", "FourBytes"]
SeedBytes = Annotated[list[U8], Field(min_length=32, max_length=32)]
_TOKEN_BYTES = {"TwoBytes": 2, "FourBytes": 4}
_NO_SEED = bytes(32)
_OWN_STATE = (
    "that members have the model from each other is the run's own state, which no owner writes; write Hub, Local or "
    "Dummy: the checkpoint to start from and to fall back on"
)


class HubCheckpoint(Variant):
    """A Hugging Face repository; without a revision its default branch."""

    repo_id: str
    revision: str = ""

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.HUB), "repo": self.repo_id, "revision": self.revision}


class LocalCheckpoint(BareVariant):
    """A directory every member has under the same path."""

    path: str

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.LOCAL), "repo": self.path, "revision": ""}


class DummyCheckpoint(Variant):
    """Seeded weights instead of stored ones; a directory or a Hub repository gives the model's shape."""

    repo_id: str = ""

    def to_chain(self) -> dict[str, Any]:
        return {"kind": int(CheckpointKind.DUMMY), "repo": self.repo_id, "revision": ""}


class Checkpoint(Choice):
    """The durable checkpoint a run starts from."""

    NOT_HERE: ClassVar[Mapping[str, str]] = {
        "Gcs": "the program names no checkpoint in Google Cloud Storage; copy it to the Hub and write Hub with its "
        "repo_id, or to every member and write Local with its path",
        "P2P": _OWN_STATE,
        "P2PGcs": _OWN_STATE,
    }
    Hub: HubCheckpoint | None = None
    Local: LocalCheckpoint | None = None
    Dummy: DummyCheckpoint | None = None


class SeededShuffle(BareVariant):
    """The data is shuffled by 32 seed bytes."""

    seed: SeedBytes

    def to_chain(self) -> dict[str, Any]:
        return {"shuffle": 1, "shuffle_seed": bytes(self.seed)}


class NoShuffle(Variant):
    """The data is read in its own order."""

    def to_chain(self) -> dict[str, Any]:
        return {"shuffle": 0, "shuffle_seed": _NO_SEED}


class Shuffle(Choice):
    """In which order the sequences are numbered."""

    DontShuffle: NoShuffle | None = None
    Seeded: SeededShuffle | None = None


_NO_SHUFFLE = Shuffle(DontShuffle=NoShuffle())


def _location(kind: DataKind, primary: str, secondary: str = "", token_size: TokenSize = "TwoBytes") -> dict[str, Any]:
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

    address: str

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.SERVER, self.address)


class LocalData(BareVariant):
    """A token file, or a directory of them, that every member has under the same path."""

    path: str
    token_size_in_bytes: TokenSize = "TwoBytes"
    shuffle: Shuffle = _NO_SHUFFLE

    def to_chain(self) -> dict[str, Any]:
        location = _location(DataKind.LOCAL, self.path, token_size=self.token_size_in_bytes)
        return location | self.shuffle.to_chain()


class SingleUrlFiles(BareVariant):
    """One token file behind one URL."""

    url: str

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.HTTP_SINGLE_URL, self.url)


class NumberedUrlFiles(Variant):
    """Token files whose URLs differ in a number: `{}` in the template, padded with zeros to `n_left_pad_zeros`
    digits.
    """

    url_template: str
    start_index: U32 = 0
    n_left_pad_zeros: U8 = 0
    num_files: U32

    def to_chain(self) -> dict[str, Any]:
        numbers = {"pad_zeros": self.n_left_pad_zeros, "start_index": self.start_index, "num_files": self.num_files}
        return _location(DataKind.HTTP_NUMBERED_FILES, self.url_template) | numbers


class GcpFiles(Variant):
    """A public Google Cloud bucket and the folder in it."""

    bucket_name: str
    filter_directory: str = ""

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.HTTP_GCP, self.bucket_name, self.filter_directory)


class HttpLocation(Choice):
    """Which files an HTTP data location reads."""

    SingleUrl: SingleUrlFiles | None = None
    NumberedFiles: NumberedUrlFiles | None = None
    Gcp: GcpFiles | None = None


class HttpData(Variant):
    """Token files over HTTP."""

    token_size_in_bytes: TokenSize = "TwoBytes"
    shuffle: Shuffle = _NO_SHUFFLE
    location: HttpLocation

    def to_chain(self) -> dict[str, Any]:
        token_bytes = _TOKEN_BYTES[self.token_size_in_bytes]
        return self.location.to_chain() | {"token_bytes": token_bytes} | self.shuffle.to_chain()


class WeightedData(BareVariant):
    """The URL of a JSON list of weighted data locations."""

    url: str

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.WEIGHTED_HTTP, self.url)


class PreprocessedData(BareVariant):
    """A data set that is tokenised already."""

    path: str

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.PREPROCESSED, self.path)


class DataLocation(Choice):
    """Where the tokens are."""

    Dummy: DummyData | None = None
    Server: ServerData | None = None
    Local: LocalData | None = None
    Http: HttpData | None = None
    WeightedHttp: WeightedData | None = None
    Preprocessed: PreprocessedData | None = None
