"""Where a run's tokens are, and how to read them: `[model.LLM.data_location]`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from aftermath.base.allowed_locations import RunAccess, advice_to_member, any_address
from aftermath.config.tables import (
    U8,
    U32,
    BareVariant,
    Choice,
    KeyLimits,
    Location,
    Variant,
    extensible,
)
from aftermath.rules.state import DataKind

if TYPE_CHECKING:  # readers need NumPy and HTTP, and a config is checked without them
    from aftermath.data.http import HttpClient
    from aftermath.data.source import DataRequest, Source

TokenSize = Literal["TwoBytes", "FourBytes"]
SeedBytes = Annotated[list[U8], Field(min_length=32, max_length=32)]
_TOKEN_BYTES = {"TwoBytes": 2, "FourBytes": 4}
_NO_SEED = bytes(32)
DataHash = Annotated[
    str,
    Field(pattern="^([0-9a-f]{64})?$"),
    KeyLimits(form="64 lowercase hex digits, or empty"),
]
"""Hash of a run's data files in hex, or empty if the owner did not give one."""


class SeededShuffle(BareVariant):
    """An order that 32 seed bytes determine."""

    seed: SeedBytes = Field(examples=[list(range(1, 33))], description="32 numbers from 0 to 255.")

    def to_chain(self) -> dict[str, Any]:
        return {"shuffle": 1, "shuffle_seed": bytes(self.seed)}


class NoShuffle(Variant):
    """The order in which the data is stored."""

    def to_chain(self) -> dict[str, Any]:
        return {"shuffle": 0, "shuffle_seed": _NO_SEED}


class Shuffle(Choice):
    """The order in which sequences are numbered."""

    DontShuffle: NoShuffle | None = Field(default=None, description="The stored order of the data.")
    Seeded: SeededShuffle | None = Field(default=None, description="An order made from a seed.")

    @property
    def seed(self) -> bytes | None:
        """The seed's bytes, or None for the stored order."""
        return bytes(self.Seeded.seed) if self.Seeded is not None else None


_NO_SHUFFLE = Shuffle(DontShuffle=NoShuffle())
_TOKEN_SIZE = "Bytes of a token in the files. TwoBytes hold a vocabulary of up to 65,536."
_ORDER = "Order in which the sequences are trained."


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


class DataSource(Variant, ABC):
    """A kind of data location: its keys in a config file, and how to read it."""

    has_labels: ClassVar[bool] = False
    """Whether sequences come with labels, for finetuning."""
    is_remote: ClassVar[bool] = False
    """Whether reading it contacts other machines."""
    is_mixture: ClassVar[bool] = False
    """Whether a remote document names its sources. Members then require its hash on chain."""

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.OTHER, "")

    @abstractmethod
    def open(self, request: DataRequest) -> Source:
        """Return the sequences.

        Raises DataError (SourceUnavailable if trying again may help), or Unsuitable for a place
        that `request.access` forbids.
        """

    def open_for_member(self, request: DataRequest) -> Source:
        """Call `open`. If files are missing, raise an error whose fix is for members."""
        from aftermath.data.source import NoData

        try:
            return self.open(request)
        except NoData as error:
            if request.access.trusting or not self.local_path():
                raise
            raise NoData(error.message, advice_to_member("data", self.local_path())) from None

    def check(self) -> None:
        """Raise DataError for an invalid location. This contacts no machine."""

    def local_path(self) -> str:
        """Return the path that it reads, as the run names it. Empty if there is none."""
        return ""

    def addresses(self) -> Sequence[str]:
        """Return the addresses that it contacts, without secrets, for messages."""
        return ()

    def members_of(self, access: RunAccess) -> Sequence[DataSource]:
        """Return the sources of a mixture, or itself. Raises like `open`."""
        return (self,)

    def label(self, access: RunAccess) -> str:
        """Return its name in errors: the path on this machine, or an address without secrets."""
        if path := self.local_path():
            return str(access.data_place(path))
        return ", ".join(self.addresses()) or "the run's data location"


class DummyData(DataSource):
    """Made-up tokens."""

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.DUMMY, "")

    def open(self, request: DataRequest) -> Source:
        from aftermath.data.dummy import DummyTokens

        return DummyTokens(request.seq_len, request.vocab_size)


class ServerData(BareVariant, DataSource):
    """A data server's host and port."""

    is_remote: ClassVar[bool] = True

    address: Location = Field(
        examples=["192.168.1.5:9300"], description="The server, as HOST:PORT."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.SERVER, self.address)

    def open(self, request: DataRequest) -> Source:
        from aftermath.data.data_server_client import RemoteTokens

        permits = request.access.permits
        return RemoteTokens(self.address, request.seq_len, request.vocab_size, permits=permits)

    def check(self) -> None:
        from aftermath.data.data_server_client import host_and_port

        host_and_port(self.address)

    def addresses(self) -> Sequence[str]:
        return (self.address,)


class LocalData(BareVariant, DataSource):
    """A token file, or a directory of them, that every member has under the same path."""

    path: Location = Field(
        examples=["runs/mine/tokens"],
        description="The file or directory. A relative path starts at the working directory.",
    )
    token_size_in_bytes: TokenSize = Field(default="TwoBytes", description=_TOKEN_SIZE)
    shuffle: Shuffle = Field(default=_NO_SHUFFLE, description=_ORDER)

    def to_chain(self) -> dict[str, Any]:
        location = _location(DataKind.LOCAL, self.path, token_size=self.token_size_in_bytes)
        return location | self.shuffle.to_chain()

    def open(self, request: DataRequest) -> Source:
        from aftermath.data.local import open_tokens

        return open_tokens(
            str(request.access.data_place(self.path)),
            _TOKEN_BYTES[self.token_size_in_bytes],
            request.seq_len,
            vocab_size=request.vocab_size,
            shuffle_seed=self.shuffle.seed,
        )

    def local_path(self) -> str:
        return self.path


class HttpFilesTable(Variant, ABC):
    """A way to name token files behind HTTP."""

    @abstractmethod
    def urls(self, client: HttpClient) -> list[str]:
        """Return the URLs of the files. Raises DataError."""

    @abstractmethod
    def check(self) -> None:
        """Raise DataError for an impossible address."""

    @abstractmethod
    def label(self) -> str:
        """Return the files' name in errors, without secrets."""

    def address(self) -> str:
        """Return the address that is contacted, without secrets."""
        return self.label()

    def host_is_trusted(self) -> bool:
        """Return whether the user of this machine, not the run, named the host."""
        return False


class SingleUrlFiles(BareVariant, HttpFilesTable):
    """One token file behind one URL."""

    url: Location = Field(
        examples=["https://example.org/tokens.bin"], description="The file's URL."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.HTTP_SINGLE_URL, self.url)

    def urls(self, client: HttpClient) -> list[str]:
        return [self.url]

    def check(self) -> None:
        from aftermath.data.http import check_url

        check_url(self.url)

    def label(self) -> str:
        from aftermath.data.http import redacted_url

        return redacted_url(self.url)


class NumberedUrlFiles(HttpFilesTable):
    """Token files whose URLs differ in a number: `{}` in the template, padded with zeros to
    `n_left_pad_zeros` digits.
    """

    url_template: Location = Field(
        examples=["https://example.org/tokens-{}.bin"],
        description="The URL of the files, with {} for the file number.",
    )
    start_index: U32 = Field(default=0, description="Number of the first file.")
    n_left_pad_zeros: Annotated[U8, KeyLimits("digits")] = Field(
        default=0, description="Length that numbers are padded to with zeros."
    )
    num_files: Annotated[U32, KeyLimits("files", least=1)] = Field(
        examples=[8], description="Number of files."
    )

    def to_chain(self) -> dict[str, Any]:
        numbers = {
            "pad_zeros": self.n_left_pad_zeros,
            "start_index": self.start_index,
            "num_files": self.num_files,
        }
        return _location(DataKind.HTTP_NUMBERED_FILES, self.url_template) | numbers

    def urls(self, client: HttpClient) -> list[str]:
        return self._numbered(self.num_files)

    def check(self) -> None:
        from aftermath.data.http import check_url

        check_url(self._numbered(1)[0])

    def label(self) -> str:
        from aftermath.data.http import redacted_url

        return redacted_url(self.url_template)

    def address(self) -> str:
        return f"{self.label()}, {self.num_files} files"

    def _numbered(self, count: int) -> list[str]:
        from aftermath.data.http import numbered_urls

        return numbered_urls(self.url_template, self.start_index, self.n_left_pad_zeros, count)


class GcpFiles(HttpFilesTable):
    """A public Google Cloud bucket and the folder in it."""

    bucket_name: Location = Field(
        examples=["my-tokens"], description="Name of the bucket. It must be public."
    )
    filter_directory: Location = Field(
        default="",
        examples=["fineweb"],
        description="Folder in the bucket. Empty uses the whole bucket.",
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.HTTP_GCP, self.bucket_name, self.filter_directory)

    def urls(self, client: HttpClient) -> list[str]:
        from aftermath.data.gcs import bucket_urls

        return bucket_urls(self.bucket_name, self.filter_directory, client)

    def check(self) -> None:
        from aftermath.data.gcs import check_bucket

        check_bucket(self.bucket_name)

    def label(self) -> str:
        return self.bucket_name

    def address(self) -> str:
        from aftermath.data.gcs import bucket_address

        return bucket_address(self.bucket_name)

    def host_is_trusted(self) -> bool:
        from aftermath.data.gcs import has_own_host

        return has_own_host()


class HttpLocation(Choice):
    """The files that an HTTP data location reads."""

    SingleUrl: SingleUrlFiles | None = Field(default=None, description="One file.")
    NumberedFiles: NumberedUrlFiles | None = Field(
        default=None, description="Files whose URLs differ in a number."
    )
    Gcp: GcpFiles | None = Field(default=None, description="A public Google Cloud bucket.")

    @property
    def files(self) -> HttpFilesTable:
        """The chosen table."""
        chosen = self.chosen
        assert isinstance(chosen, HttpFilesTable)
        return chosen


class HttpData(DataSource):
    """Token files over HTTP."""

    is_remote: ClassVar[bool] = True

    token_size_in_bytes: TokenSize = Field(default="TwoBytes", description=_TOKEN_SIZE)
    shuffle: Shuffle = Field(default=_NO_SHUFFLE, description=_ORDER)
    location: HttpLocation = Field(description="Which files.")

    def to_chain(self) -> dict[str, Any]:
        token_bytes = _TOKEN_BYTES[self.token_size_in_bytes]
        return self.location.to_chain() | {"token_bytes": token_bytes} | self.shuffle.to_chain()

    def open(self, request: DataRequest) -> Source:
        from aftermath.base.files import cache_directory
        from aftermath.data.cache import Cache
        from aftermath.data.http import HttpClient, HttpFiles
        from aftermath.data.tokens import TokenFiles

        files = self.location.files
        trusted = files.host_is_trusted()
        client = HttpClient(permits=any_address if trusted else request.access.permits)
        urls = files.urls(client)
        request.count_files(len(urls), files.label())
        return TokenFiles(
            HttpFiles(urls, client, Cache(cache_directory("data"))),
            self.label(request.access),
            _TOKEN_BYTES[self.token_size_in_bytes],
            request.seq_len,
            vocab_size=request.vocab_size,
            shuffle_seed=self.shuffle.seed,
        )

    def check(self) -> None:
        self.location.files.check()

    def addresses(self) -> Sequence[str]:
        return (self.location.files.address(),)

    def label(self, access: RunAccess) -> str:
        return self.location.files.label()


class WeightedData(BareVariant, DataSource):
    """The URL of a JSON list of weighted data locations."""

    is_remote: ClassVar[bool] = True
    is_mixture: ClassVar[bool] = True

    url: Location = Field(
        examples=["https://example.org/mixture.json"], description="The document's URL."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.WEIGHTED_HTTP, self.url)

    def open(self, request: DataRequest) -> Source:
        from aftermath.config.mixture import open_mixture

        return open_mixture(self.url, request)

    def check(self) -> None:
        from aftermath.data.http import check_url

        check_url(self.url)

    def addresses(self) -> Sequence[str]:
        from aftermath.data.http import redacted_url

        return (redacted_url(self.url),)

    def members_of(self, access: RunAccess) -> Sequence[DataSource]:
        from aftermath.config.mixture import read_mixture

        return read_mixture(self.url, access).sources


class PreprocessedData(BareVariant, DataSource):
    """A data set that is already tokenised."""

    has_labels: ClassVar[bool] = True

    path: Location = Field(
        examples=["runs/mine/rows"], description="Folder of rows, which every member must have."
    )

    def to_chain(self) -> dict[str, Any]:
        return _location(DataKind.PREPROCESSED, self.path)

    def open(self, request: DataRequest) -> Source:
        from aftermath.data.preprocessed import PreprocessedRows

        place = str(request.access.data_place(self.path))
        return PreprocessedRows(place, request.seq_len, request.vocab_size, labels=request.labels)

    def local_path(self) -> str:
        return self.path


@extensible("aftermath.data_sources", DataSource)  # type: ignore[type-abstract]
class DataLocationChoice(Choice):
    """The location of the tokens."""

    Dummy: DummyData | None = Field(default=None, description="Made-up tokens.")
    Server: ServerData | None = Field(default=None, description="A data server.")
    Local: LocalData | None = Field(default=None, description="Token files that every member has.")
    Http: HttpData | None = Field(default=None, description="Token files over HTTP.")
    WeightedHttp: WeightedData | None = Field(
        default=None, description="A mixture of data locations."
    )
    Preprocessed: PreprocessedData | None = Field(
        default=None, description="Rows with labels, for finetuning."
    )

    @property
    def source(self) -> DataSource:
        """The source that was chosen."""
        chosen = self.chosen
        assert isinstance(chosen, DataSource)
        return chosen
