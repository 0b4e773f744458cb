"""The coordinator's rules, written a second time: what every transaction does to a run, and what is
refused.

The arguments are those of the instructions, with results by small numbers instead of fingerprints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aftermath.rules import bitmap
from aftermath.rules.audits import MAX_DRAWN
from aftermath.rules.committee import quorum
from aftermath.rules.run import STORED_ROUNDS, Config, RoundId
from aftermath.rules.state import MemberState, RunState
from programs.oracle_records import (
    BARRED,
    NOBODY,
    REMOVED,
    UNATTESTED,
    UNKNOWN,
    WAITS,
    NamedCheckpoint,
    OracleCase,
    OracleMembership,
    Refusal,
    Seat,
    Vote,
    behind,
    numbers,
    require,
)
from programs.transitions import DAY, Transitions

_NO_TURN = 255


class Oracle(Transitions):
    """A run as seen by a client of the program."""

    # --- what wallets send

    def join_run(self, wallet: int, tier: int, weight: int, stateless: bool) -> None:
        require(not self.halted, "RunHalted")
        require(tier < self.levels, "TierOutOfRange")
        require(weight >= 1, "WeightZero")
        membership = self.memberships.get(wallet)
        if membership is None:
            raise Refusal("NotEnrolled")
        number = self.find(wallet)
        lost = number is not None and self.members[number].forfeited
        require(not membership.barred, "Barred")
        require(membership.enrolled, "NotEnrolled")
        require((0 if lost else membership.bond) >= self.config.join_bond, "BondTooLow")
        if number is not None:
            self._settle_seat(self.members[number], membership)
        awaited_others = self._newcomers_alone(self.waiting)
        number = self._claim(wallet)
        seat = self.members[number]
        if seat.state is MemberState.IDLE:
            if seat.tier != tier:
                self.finishers &= ~(1 << number)
                seat.established = False
            seat.tier = tier
            seat.declared = weight
        if stateless:
            self.finishers &= ~(1 << number)
            self._withdraw(seat, restarted=True)
        added, seat.wish = seat.wish != WAITS, WAITS
        if stateless:
            self._reelect()
        enough = self.waiting.bit_count() == self.config.init_min_clients
        first_awaited = awaited_others and not self._newcomers_alone(self.waiting)
        if added and self.state is RunState.WAITING_FOR_MEMBERS:
            if enough:
                self._enter(RunState.WAITING_FOR_MEMBERS)
            elif first_awaited and (
                not self._passed(self.waiting_since, DAY) or self._passed(self.since, DAY)
            ):
                self.since = self.now
        self._follow()

    def may_join(self, wallet: int) -> bool:
        """Return whether the wallet may join: it is enrolled with the required bond, or barred,
        which is checked later.
        """
        membership = self.memberships.get(wallet)
        number = self.find(wallet)
        lost = number is not None and self.members[number].forfeited
        paid = (
            membership is not None
            and membership.enrolled
            and (0 if lost else membership.bond) >= self.config.join_bond
        )
        return paid or (membership is not None and membership.barred)

    def enroll(self, wallet: int, max_bond: int) -> None:
        require(self.config.join_bond <= max_bond, "BondAboveLimit")
        membership = self.memberships.get(wallet, OracleMembership())
        require(not membership.barred, "Barred")
        self.memberships[wallet] = membership
        membership.enrolled, membership.bond = True, max(membership.bond, self.config.join_bond)

    def settle(self, wallet: int) -> None:
        """Settle the membership of this wallet. Anyone may send it."""
        if wallet not in self.memberships:
            raise Refusal("AccountDataTooSmall")
        number = self.find(wallet)
        if number is None:
            raise Refusal("NotAMember")
        self._settle_seat(self.members[number], self.memberships[wallet])
        self.memberships[wallet].forfeited = 0

    def withdraw(self, wallet: int) -> None:
        membership = self.memberships.get(wallet)
        if membership is None:
            raise Refusal("AccountDataTooSmall")
        require(membership.enrolled, "Barred" if membership.own else "NotOwnMembership")
        number = self.find(wallet)
        if number is not None:
            seat = self.members[number]
            require(seat.state is MemberState.IDLE and seat.wish != WAITS, "StillBound")
            self._settle_seat(seat, membership)
            self.members[number] = Seat(NOBODY)
            self.finishers &= ~(1 << number)
        membership.bond = 0
        membership.forfeited = 0
        membership.enrolled = False
        if not membership.barred:
            del self.memberships[wallet]

    def leave_run(self, wallet: int, at: RoundId) -> None:
        require(any(self.is_round(at, back) for back in range(STORED_ROUNDS)), "StaleHeight")
        number = self.find(wallet)
        if number is None:
            raise Refusal("NotAMember")
        seat = self.members[number]
        require(seat.state is MemberState.HEALTHY or seat.wish == WAITS, "NotAMember")
        if seat.wish == WAITS:
            seat.wish = 0
        if seat.state is MemberState.HEALTHY:
            self._withdraw(seat)
            self._reelect()
        self._follow()

    def tick(self, wallet: int) -> None:
        del wallet
        require(self._tick(), "NothingToTick")

    def warmup_witness(self, wallet: int, number: int, at: RoundId) -> None:
        require(self.state is RunState.WARMUP, "WrongState")
        require(not self.seed_slot and self.is_round(at, 0), "StaleHeight")
        self._require_own_seat(number, wallet)
        require(
            number in self.witnesses() and bitmap.contains(self.round.roster, number), "NotElected"
        )
        require(not bitmap.contains(self.round.ready, number), "DuplicateWitness")
        self.round.ready |= 1 << number
        self._follow()

    def witness(self, wallet: int, number: int, at: RoundId, results: Mapping[int, int]) -> None:
        require(self.state.training, "WrongState")
        require(self.is_round(at, 0), "StaleHeight")
        self._require_own_seat(number, wallet)
        require(number in self.witnesses(), "NotElected")
        require(not bitmap.contains(self.round.voters, number), "DuplicateWitness")
        judged = self.judged_by(self.round)
        require(
            not bitmap.from_seats(results) & ~(judged.roster if judged else 0), "BadParticipation"
        )
        if not self.round.votes:
            self.judge()
        self.round.votes.append(Vote(number, dict(results)))
        self._follow()

    def verify(self, wallet: int, number: int, at: RoundId, target: int, mismatch: bool) -> None:
        require(self.state.active, "WrongState")
        case = next((one for one in self.kept_cases() if self._is_about(one, at, target)), None)
        backs = (back for back in range(1, STORED_ROUNDS) if self.is_round(at, back))
        round = self._past(next(backs, STORED_ROUNDS))
        audits = self.audits(round) if round else None
        self._require_own_seat(number, wallet)
        if case is None:
            if round is None or audits is None:
                raise Refusal("StaleHeight")
            require(mismatch, "NotDisputed")
            require(target in audits, "NotAudited")
            auditor, jury = audits[target]
            require(auditor == number, "NotAuditor")
            self.cases = self.kept_cases()
            of_class = [
                one
                for one in self.cases
                if bitmap.contains(self.judges, one.target) == bitmap.contains(self.judges, target)
            ]
            is_accuser = any(one.auditor == auditor for one in of_class if one.jury)
            require(not is_accuser and len(of_class) < MAX_DRAWN // 2, "CasesFull")
            sequences = behind(round.batch, set(self.shares(round)[target]))
            case = OracleCase(round, self.round.height, target, auditor, jury, sequences)
            self.cases.append(case)
        require(number in case.jury, "NotAJuror")
        require(number not in case.votes, "DuplicateVerdict")
        case.votes[number] = mismatch
        available = {one for one in case.jury if bitmap.contains(self.healthy, one)}
        needed = max(quorum(len(available | case.votes.keys())), len(case.jury) // 2 + 1)
        if case.against(mismatch).bit_count() >= needed:
            case.jury = []
            case.votes = {}
            if mismatch and self._has_room(len(case.sequences)):
                self.trained -= numbers(case.sequences)
                self._put_back(case.sequences)
                lowest = min(numbers(case.sequences))
                known = self.known
                self.known = replace(known, data_index=min(known.data_index, lowest))
            self._eject(self.members[target if mismatch else case.auditor])
        self._follow()

    def _is_about(self, case: OracleCase, at: RoundId, target: int) -> bool:
        round_id = RoundId(self.epoch, case.round.height, case.round.seed or 0)
        return case.target == target and round_id == at

    def prove_equivocation(self, wallet: int, number: int, same: bool) -> None:
        """Submit two results of a seat in the current round, or one result twice, signed by that
        wallet's key.
        """
        require(self.state.active, "WrongState")
        require(not same, "NoEquivocation")
        require(
            number < len(self.members) and self.members[number].wallet == wallet, "SeatMismatch"
        )
        seat = self.members[number]
        require(seat.state not in (MemberState.IDLE, MemberState.EJECTED), "AlreadyEjected")
        self._eject(seat)
        self._follow()

    def attest(self, wallet: int, number: int, at: RoundId, hashes: Mapping[int, bytes]) -> None:
        require(self.state is RunState.COOLDOWN, "WrongState")
        require(self.is_round(at, 0), "StaleHeight")
        require(bool(hashes), "HashesInvalid")
        self._require_own_seat(number, wallet)
        require(bitmap.contains(self.proven, number), "NotElected")
        electees = {level: self.electees(level) for level in range(self.levels)}
        counted = []
        for level in sorted(hashes):
            require(hashes[level] not in (UNKNOWN, UNATTESTED), "HashesInvalid")
            if number in electees.get(level, ()):
                require(number not in self.statements[level], "DuplicateWitness")
                counted.append(level)
        require(bool(counted), "NotElected")
        for level in counted:
            self.statements[level][number] = hashes[level]
            agreeing = sum(one == hashes[level] for one in self.statements[level].values())
            if not self.known.attested >> level & 1 and agreeing >= quorum(len(electees[level])):
                self._record(level, hashes[level])
        self._follow()

    def health_check(self, wallet: int, dropped: int) -> None:
        require(self.state.training, "WrongState")
        judges = self._past(1)
        judged = self.judged_by(judges) if judges else None
        if judges is None or judged is None:
            raise Refusal("StaleHeight")
        number = self.find(wallet)
        require(number is not None, "NotAMember")
        require(
            number is not None and self.members[number].state is MemberState.HEALTHY, "SeatMismatch"
        )
        without = self.absent(judges, judged)
        incomplete = self.incomplete(judges, judged)
        require(
            bool(dropped) and not dropped & ~((without | incomplete) & self.healthy), "NotUnhealthy"
        )
        for one in bitmap.seats(dropped):
            self._exit(self.members[one], MemberState.DROPPED)
            self.members[one].established &= not bitmap.contains(incomplete, one)
        self._reelect()
        self._follow()

    def checkpoint(self, wallet: int, hashes: tuple[bytes, ...]) -> None:
        """Record a location on the Hub."""
        number = self.find(wallet)
        if number is None:
            raise Refusal("NotAllowedToCheckpoint")
        seat = self.members[number]
        cooling = self.state is RunState.COOLDOWN and seat.state is MemberState.HEALTHY
        cooling = cooling and bitmap.contains(self.round.roster, number)
        trained = seat.established or bitmap.contains(self.proven, number)
        holds = trained and (cooling or bitmap.contains(self.finishers, number))
        holds = holds and seat.tier == 0
        require(holds and seat.state is not MemberState.EJECTED, "NotAllowedToCheckpoint")
        require(
            self.known.attested == self.every and hashes == self.known.hashes, "CheckpointMismatch"
        )
        require(not self.is_provisional(), "CheckpointMismatch")
        turn = self._turn(number)
        known = self.known
        same = known.step == self.durable.step and turn < self.durable.turn
        require(known.step > self.durable.step or same, "CheckpointNotNewer")
        self._name(NamedCheckpoint(known.hashes, known.step, known.data_index, turn))
        self._follow()

    def _name(self, checkpoint: NamedCheckpoint) -> None:
        """Record a checkpoint. Keep at most two of one step."""
        before = self.earlier[0].step if self.earlier[0] else 0
        if not checkpoint.step == self.durable.step == before:
            self.earlier = [None, *self.earlier[:-1]]
        self.earlier[0], self.durable = self.durable, checkpoint

    def _turn(self, number: int) -> int:
        over = (
            self.state not in (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
            and self.rounds
        )
        if not over or not bitmap.contains(self.round.roster, number):
            return _NO_TURN
        return self.round.ordered(b"checkpoint").index(number)

    # --- what the owner sends

    def set_paused(self, paused: bool) -> None:
        if paused:
            require(not self.halted, "AlreadyHalted")
            if self.state.active:
                self.pausing = True
            else:
                self._pause()
            return
        if self.state.active and self.pausing:
            self.pausing = False
            return
        require(self.halted, "NotPaused")
        if self.state is RunState.FINISHED:
            require(self.step <= self.config.total_steps, "StepsDone")
            self.cold = True
        over = self.step > self.config.total_steps
        self._enter(RunState.FINISHED if over else RunState.WAITING_FOR_MEMBERS)

    def update(
        self, config: Config | None, progress: tuple[int, int, int] | None, use_durable: bool
    ) -> None:
        """Set a config that keeps the rules, and the epoch, step and next fresh sequence."""
        require(self.halted, "NotHalted")
        if progress is not None:
            epoch, step, data_index = progress
            require(step >= 1, "StepZero")
            require(epoch >= self.epoch, "EpochGoesBack")
            self.epoch = epoch
            self._move(step, data_index)
            self.start_step = 0
            self.known = replace(self.known, step=min(self.known.step, step))
            self.durable = replace(self.durable, step=min(self.durable.step, step - 1))
        self.config = config or self.config
        if use_durable:
            self._use_durable()

    def _move(self, step: int, data_index: int) -> None:
        """Continue the run at another position, and drop the backlog."""
        self.step = step
        self.data_index = data_index
        self.backlog = set()
        self.trained = {one for one in self.trained if one < data_index}

    def rewind(self, index: int, step: int) -> None:
        require(self.halted, "NotHalted")
        known = [self.durable, *self.earlier]
        chosen = known[index] if index < len(known) else None
        if chosen is None or chosen.step != step:
            raise Refusal("NoSuchCheckpoint")
        if index:
            self.earlier[index - 1] = self.durable
        self.durable = replace(chosen, turn=0)
        self._move(max(step, 1), chosen.data_index)
        self.finishers = 0
        self.cold = True
        self.epoch_since = 0
        self._use_durable()

    def kick(self, wallet: int, barred: bool) -> None:
        number = self.find(wallet)
        membership = self.memberships.get(wallet)
        require(
            barred or number is not None or (membership is not None and membership.barred),
            "NotAMember",
        )
        membership = self.memberships.setdefault(wallet, OracleMembership(own=False))
        membership.barred = barred
        if not membership.enrolled and not barred:
            del self.memberships[wallet]
        if number is None:
            return
        self.members[number].wish = BARRED if barred else REMOVED
        if self.halted or self.state is RunState.WAITING_FOR_MEMBERS:
            self.finishers &= ~(1 << number)
