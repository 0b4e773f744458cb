"""Test that members earn their weight: newcomers get the median at most, and others twice what they
delivered.
"""

from aftermath.rules import assignment, bitmap, committee
from aftermath.rules.state import MemberState, RunState
from programs.harness import World
from programs.scenario import Scenario, member


def weights(run: Scenario) -> dict[int, int]:
    return {run.index_of(seat.signer): seat.weight for seat in run.members.seats if seat.used}


def shares(run: Scenario) -> dict[int, int]:
    """Return how many sequences each member of the current round trains."""
    planned = assignment.assign(run.run.current, run.members)
    seats = run.members.seats
    return {run.index_of(seats[seat].signer): share.len for seat, share in planned.items()}


def epoch(run: Scenario, silent: dict[int, int] | None = None) -> None:
    """Play the rounds of an epoch and its end.

    `silent` members deliver in only this many rounds.
    """
    while run.run.state.training:
        current = run.run.current
        judged = run.run.round(run.run.config.judged(current.height))
        participation = judged.roster if judged else 0
        for index, delivers in (silent or {}).items():
            if judged and judged.height >= delivers:
                participation &= ~(1 << run.seat_of(index))
        run.witness_round(participation=participation)
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS


def again(run: Scenario, declared: dict[int, int]) -> None:
    """Start the next epoch with members that declare these weights."""
    for index, weight in declared.items():
        run.join(index, weight=weight).ok()
    run.world.advance(40)
    run.tick().ok()
    run.world.advance(31)
    run.tick().ok()


def test_member_without_share_next_to_large_weight_keeps_vote(world: World) -> None:
    """One weight doubles until other members owe nothing in whole epochs.

    They still attest the model.
    """
    run = Scenario(world, tiers=1).start(
        init_min_clients=9, rounds_per_epoch=5, global_batch_size_start=9, global_batch_size_end=9
    )
    declared = dict.fromkeys(range(6), 60) | dict.fromkeys(range(6, 9), 65_535)
    idle = 0
    for _ in range(9):
        again(run, declared)
        owed = 0
        while run.run.state.training:
            owing = run.owing()
            owed |= owing
            run.witness_round(participation=owing)
        attesters = [
            index
            for index in declared
            if committee.levels_to_attest(run.run, run.members, run.seat_of(index))
        ]
        assert attesters == list(declared)
        for index in attesters:
            run.attest(index, {0: b"t" * 32})
        run.world.advance(31)
        run.tick(1).ok()
        assert run.run.level_hashes[0] == b"t" * 32
        idle |= run.run.began & ~owed
    assert idle  # some members owed nothing in a whole epoch


def _rounds_of(run: Scenario, tiers: dict[int, int]) -> int:
    """Play the rounds of an epoch whose first member is slow.

    Return the bitmap of the members that owed something.
    """
    for index, tier in tiers.items():
        run.join(index, tier=tier, weight=60_000 if index else 1).ok()
    run.world.advance(40)
    run.tick(1).ok()
    run.draw()
    run.world.advance(31)
    run.tick(1).ok()
    owed = 0
    while run.run.state.training:
        owing = run.owing()
        owed |= owing
        run.witness_round(participation=owing)
    return owed


def test_member_without_share_in_first_epoch_is_established(world: World) -> None:
    """The only holder of level 0 is slow, and two newcomers declare the level too.

    Only the holder attests it.
    """
    known = {0: 0} | dict.fromkeys(range(1, 6), 1)
    newcomers = {7: 0, 8: 0}
    true = (b"t" * 32, b"u" * 32)
    rules = {
        "init_min_clients": 3,
        "rounds_per_epoch": 2,
        "global_batch_size_start": 9,
        "global_batch_size_end": 9,
    }
    Scenario(world).authorize().ok()
    for attempt in range(20):  # in some orders the slow member is last and owes something
        run = Scenario(world, f"run {attempt}", tiers=2)
        run.create().ok()
        run.configure(**rules).ok()
        run.owner("set_paused", False).ok()
        if not _rounds_of(run, known) & 1:
            break
    assert run.members.judged == 2
    _state(run, known, true)
    assert run.members.established & 1
    _rounds_of(run, known | newcomers)
    for index in newcomers:
        run.attest(index, dict.fromkeys(range(2), b"f" * 32)).refused("NotElected")
    _state(run, known, true)


def _state(run: Scenario, tiers: dict[int, int], hashes: tuple[bytes, ...]) -> None:
    """Let each of these members that is elected attest the levels."""
    for index, tier in tiers.items():
        levels = committee.levels_to_attest(run.run, run.members, run.seat_of(index))
        if levels and run.run.state is RunState.COOLDOWN:
            run.attest(
                index, {level: hashes[level] for level in range(tier, 2) if level in levels}
            ).ok()
    run.world.advance(31)
    run.tick(1)
    assert run.run.level_hashes == hashes


def test_newcomer_weight_is_capped_at_declared_median(run: Scenario) -> None:
    again(run, {0: 10, 1: 20, 2: 30, 3: 65_535})
    assert weights(run) == {0: 10, 1: 20, 2: 20, 3: 20}
    assert [seat.declared for seat in run.members.seats[:4]] == [10, 20, 30, 65_535]


def test_excessive_declared_weight_is_capped_by_deliveries(world: World) -> None:
    """A declared weight of 65,535 against 60 would get 99 % of the data.

    The wallet gets a tenth as a newcomer, and almost nothing after that.
    """
    run = Scenario(world).start(global_batch_size_start=1000, global_batch_size_end=1000)
    declared = dict.fromkeys(range(10), 60) | {10: 65_535}
    again(run, declared)
    assert max(shares(run).values()) <= 91
    epoch(run, silent={10: 0})
    for _ in range(2):
        again(run, declared)
        assert shares(run)[10] <= 2
        assert min(shares(run)[index] for index in range(10)) >= 98
        epoch(run, silent={10: 0})
    lost = sum(interval.len for interval in run.backlog)
    assert run.run.lost_sequences == 0
    assert lost <= 2 * 5


def test_delivering_member_weight_at_most_doubles(run: Scenario) -> None:
    declared = {0: 60, 1: 60, 2: 400}
    for expected in (60, 120, 240, 400, 400):
        again(run, declared)
        assert weights(run) == {0: 60, 1: 60, 2: expected}
        epoch(run)
    assert weights(run) == {0: 120, 1: 120, 2: 800}  # the maximum for the next epoch


def test_weight_of_fast_wallet_is_at_most_eight_medians(world: World) -> None:
    """It delivers its whole share in every epoch."""
    run = Scenario(world).start(global_batch_size_start=960, global_batch_size_end=960)
    declared = dict.fromkeys(range(8), 60) | {8: 65_535}
    for expected in (60, 120, 240, 480, 480):
        again(run, declared)
        assert weights(run)[8] == expected
        assert abs(shares(run)[8] - 960 * expected / (480 + expected)) < 1
        epoch(run)


def test_partial_delivery_weight_is_twice_that_part(world: World) -> None:
    run = Scenario(world).start(rounds_per_epoch=8)
    again(run, dict.fromkeys(range(6), 64))
    epoch(run, silent={1: 0, 2: 2, 3: 4, 4: 7})
    assert weights(run) == {0: 128, 1: 1, 2: 32, 3: 64, 4: 112, 5: 128}


def test_newcomer_weight_equals_median_of_known_members(run: Scenario) -> None:
    again(run, {0: 50, 1: 60, 2: 70})
    epoch(run)
    crowd = dict.fromkeys(range(10, 30), 65_535)
    again(run, {0: 50, 1: 60, 2: 70} | crowd)
    assert weights(run) == {0: 50, 1: 60, 2: 70} | dict.fromkeys(crowd, 60)


def test_dropped_or_leaving_member_weight_counts_deliveries(world: World) -> None:
    run = Scenario(world).start(rounds_per_epoch=8)
    again(run, dict.fromkeys(range(5), 64))
    while run.run.current.height < 3:
        run.witness_round(
            participation=run.run.current.roster & ~1 if run.run.current.height else 0
        )
    run.by(1, "health_check", run.names([0])).ok()
    for index in (3, 4):
        run.by(index, "leave_run").ok()
    assert run.members.seats[0].state is MemberState.DROPPED
    epoch(run, silent={0: 0, 4: 0})
    assert weights(run) == {0: 1, 1: 128, 2: 128, 3: 80, 4: 32}


def test_leave_in_first_round_delivers_nothing(run: Scenario) -> None:
    """The exploit: wallets left in round 0 of every epoch, and got a full share again in the next
    one.
    """
    again(run, dict.fromkeys(range(5), 64))
    run.by(4, "leave_run").ok()
    epoch(run, silent={4: 0})
    assert weights(run) == {0: 128, 1: 128, 2: 128, 3: 128, 4: 1}


def test_leave_in_warm_up_halves_weight(run: Scenario) -> None:
    """Only its share of round 0 stays untrained. Its weight halves each time."""
    for expected in (64, 32, 16):
        for index in range(5):
            run.join(index, weight=64).ok()
        run.world.advance(40)
        run.tick().ok()
        assert weights(run)[4] == expected
        run.by(4, "leave_run").ok()
        assert run.members.seats[4].state is MemberState.LEFT_EARLY
        run.draw()
        run.world.advance(31)
        run.tick().ok()
        epoch(run)
    assert weights(run)[4] == 8


def test_abandoned_warm_up_keeps_weights(run: Scenario) -> None:
    again(run, dict.fromkeys(range(3), 64))
    epoch(run)
    for index in range(3):
        run.join(index, weight=64).ok()
    run.world.advance(40)
    run.tick().ok()
    for index in (0, 1):
        run.by(index, "leave_run").ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert set(weights(run).values()) == {64}


def test_member_without_delivery_is_a_newcomer_again(run: Scenario) -> None:
    """The exploit: wallets alone in a warm-up, or in an epoch without a step, kept their declared
    weight as if they had delivered.
    """
    for begins in (False, True):
        for index in (10, 11, 12):
            run.join(index, weight=65_535).ok()
        run.world.advance(40)
        run.tick(10).ok()
        assert weights(run)[10] == 65_535
        if not begins:
            run.by(10, "leave_run").ok()
            run.by(11, "leave_run").ok()
        while begins and run.run.state is not RunState.WAITING_FOR_MEMBERS:
            run.world.advance(31)
            run.tick(10).ok()
        assert run.run.state is RunState.WAITING_FOR_MEMBERS
        assert set(weights(run).values()) == {0}
    again(run, dict.fromkeys(range(5), 64) | dict.fromkeys((10, 11), 65_535))
    assert set(weights(run).values()) - {0} == {64}


def test_rounds_without_quorum_keep_weights(run: Scenario) -> None:
    again(run, {0: 60, 1: 60, 2: 60})
    run.witness_round()
    run.witness_round()
    while run.run.state.training:
        run.world.advance(21)
        run.tick()
    run.world.advance(31)
    run.tick().ok()
    assert weights(run) == {0: 120, 1: 120, 2: 120}


def test_counts_of_many_members_are_exact() -> None:
    """Members deliver in different numbers of rounds, and the program counts them."""
    run = Scenario(World()).start(
        rounds_per_epoch=40, min_clients=200, init_min_clients=200, witness_nodes=4,
        global_batch_size_start=2000, global_batch_size_end=2000,
    )  # fmt: skip
    for index in range(200):
        run.join(index, weight=64).ok()
    run.world.advance(6)
    run.tick().ok()
    run.world.advance(31)
    run.tick().ok()
    counts = dict.fromkeys(range(200), 0)
    judged = 0
    while run.run.state.training:
        height = run.run.current.height
        step = run.run.step
        before = run.run.round(height - 1)
        missing = bitmap.from_seats(
            seat for seat in range(0, 200, 25) if (height + seat) % 8 >= seat // 25
        )
        participation = before.roster & ~missing if before else 0
        run.witness_round(participation=participation)
        if before:
            judged += 1
            assert run.run.step == step + 1
            for seat in bitmap.seats(participation):
                counts[seat] += 1
    run.world.advance(31)
    run.tick().ok()
    assert judged == 40
    expected = {seat: max(1, 128 * (8 * count // judged) // 8) for seat, count in counts.items()}
    owed = {seat: run.members.seats[seat].weight for seat in counts}
    assert owed == expected
    assert bytes(member(0).pubkey()) == run.members.seats[0].signer


def test_idle_wallets_do_not_lower_the_median(run: Scenario) -> None:
    """Wallets that declare 1 and deliver nothing have a weight of 1. They outnumber the members."""
    declared = {0: 60, 1: 60, 2: 240}
    for _ in range(3):
        again(run, declared)
        epoch(run)
    idle = dict.fromkeys(range(20, 26), 1)
    for _ in range(2):
        again(run, declared | idle)
        assert weights(run) == declared | idle
        epoch(run, silent=dict.fromkeys(idle, 0))


def test_one_of_two_established_does_not_lower_the_median(world: World) -> None:
    """Epochs of one step establish nobody, so the others are only experienced."""
    run = Scenario(world).start(rounds_per_epoch=1, init_min_clients=2)
    founders = {0: 60, 1: 60}
    declared = founders | dict.fromkeys(range(2, 6), 60)
    for members in (founders, declared, declared):
        again(run, members)
        epoch(run)
    assert run.members.established == 0b11
    again(run, declared | {1: 1})
    assert weights(run) == declared | {1: 1}
