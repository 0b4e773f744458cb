"""One large blob in verified pieces. `p2p.swarm` fetches them, and `p2p.blobs` serves them."""

from __future__ import annotations

from dataclasses import dataclass, field

from blake3 import blake3

PIECE = 1 << 20
HASH = 32


def piece_count(size: int) -> int:
    """Return the number of pieces of a blob of `size` bytes."""
    return -(-size // PIECE)


def piece_hashes(data: bytes) -> bytes:
    """Return the BLAKE3 hashes of all pieces, joined."""
    view = memoryview(data)
    return b"".join(
        blake3(view[start : start + PIECE]).digest() for start in range(0, len(data), PIECE)
    )


@dataclass(eq=False)
class Pieces:
    """The verified pieces of a blob. `listing` is the digest of the author's piece hashes.

    Two members exchange pieces only under the same listing. So an author that sends different lists
    cannot make an honest member appear to send false pieces. Sets of pieces are integers with one
    bit for each piece.
    """

    size: int
    hashes: bytes
    data: bytearray | bytes
    held: int = 0
    pulled: int = 0
    """Pieces that this member is fetching from the author."""
    listing: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.listing = blake3(self.hashes).digest()

    @classmethod
    def whole(cls, data: bytes) -> Pieces:
        """Return all pieces of a verified blob."""
        return cls(len(data), piece_hashes(data), data, (1 << piece_count(len(data))) - 1)

    @property
    def count(self) -> int:
        """Return the number of pieces."""
        return piece_count(self.size)

    @property
    def complete(self) -> bool:
        """Return whether all pieces are verified."""
        return self.held == (1 << self.count) - 1

    def holds(self, index: int) -> bool:
        """Return whether this piece is verified."""
        return bool(self.held >> index & 1)

    def length(self, index: int) -> int:
        """Return the size of one piece in bytes."""
        return min(PIECE, self.size - index * PIECE)

    def status(self) -> bytes:
        """Return two bitmaps: the pieces held, and those being fetched from the author."""
        width = -(-self.count // 8)
        return self.held.to_bytes(width, "little") + self.pulled.to_bytes(width, "little")

    def put(self, index: int, piece: bytes | bytearray) -> bool:
        """Store a piece if it matches its hash. Return whether it does."""
        if blake3(piece).digest() != self.hashes[index * HASH : (index + 1) * HASH]:
            return False
        if not self.holds(index):
            assert isinstance(self.data, bytearray)
            self.data[index * PIECE : index * PIECE + len(piece)] = piece
            self.held |= 1 << index
        return True
