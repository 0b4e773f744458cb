"""Lanes: further connections to a peer, so that blobs travel faster over lossy paths."""

# The iroh binding cannot select QUIC's congestion control. At a round trip of 100 ms and 0.1% of
# packets lost, its CUBIC carries about 4 Mb/s per connection. So a member with few peers cannot use
# its bandwidth with one connection to each. With many peers it can, and opens no lanes.

from __future__ import annotations

from aftermath.p2p.partial_download import WORTH_STEALING_FROM_LANE

MAX_CONNECTIONS = 24
"""A member opens lanes only while its links and lanes together are at most this many."""
MOST_LANES = 2
"""Lanes to one peer, in addition to its link."""
MIN_LANE_BYTES = 2 * WORTH_STEALING_FROM_LANE
"""Bytes of the smallest blob that uses lanes. Smaller ones are not cut."""
MAX_TRANSFERS_PER_LANE = 2
"""Maximum transfers (of blobs or pieces) that we run over one lane at a time."""
LANES_RETRY_S = 10.0
"""Seconds between two attempts to open missing lanes to one peer."""


def lanes_for(peers: int) -> int:
    """Return the number of lanes to each peer of a member that has this many peers."""
    return max(0, min(MOST_LANES, MAX_CONNECTIONS // max(1, peers) - 1))
