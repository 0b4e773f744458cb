//! The seats of members: find and give away seats, join, exit, kick and eject.

use super::{bitmap, committee, levels, membership, moment::elapsed, provisional, weights, Moment};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::{address_eq, prelude::*};

/// Return the seat that belongs to `signer`. Used seats come first, so the search ends at the first unused one.
pub fn find(members: &Members, signer: &Address) -> Option<usize> {
    let used = members.seats.iter().take_while(|seat| seat.used == 1);
    used.enumerate().find(|(_, seat)| address_eq(&seat.signer, signer)).map(|(index, _)| index)
}

/// Refuse a signer that does not own `seat`, and one whose member is not healthy.
#[inline(never)]
pub fn check_healthy(members: &Members, seat: u8, signer: &Address) -> Result<()> {
    let member = &members.seats[seat as usize];
    let is_owner = member.used == 1 && address_eq(&member.signer, signer);
    require!(is_owner && member.state == member_state::HEALTHY, CoordinatorError::SeatMismatch);
    Ok(())
}

/// Return the members that wait for the next epoch.
pub fn pending(members: &Members) -> Bitmap {
    collect(members, |seat| seat.pending == pending::WAITS)
}

/// Take the members of `set` out of the running epoch; `state` says why. Members that delivered in half of the rounds
/// keep their vote on the levels, unless they are ejected. In cooldown the voters are already fixed.
#[inline(never)]
pub fn exit(run: &Run, members: &mut Members, set: &Bitmap, state: u8) {
    let height = run.exit_height();
    let early = run.state == run_state::WARMUP;
    let state = if early && state == member_state::WITHDRAWN { member_state::LEFT_EARLY } else { state };
    for index in bitmap::seats(set) {
        let seat = &mut members.seats[index];
        if seat.state == member_state::HEALTHY {
            seat.exited_height = height;
        }
        seat.state = state;
    }
    if run.state != run_state::COOLDOWN {
        let keep_vote = if state == member_state::EJECTED { [0; 32] } else { weights::half_delivered(members) };
        members.proven = bitmap::without(&members.proven, &bitmap::without(set, &keep_vote));
        if state == member_state::EJECTED {
            members.established = bitmap::without(&members.established, set);
        }
    }
    members.healthy = bitmap::without(&members.healthy, set);
}

/// Return all members to idle.
pub fn set_all_idle(members: &mut Members) {
    for seat in members.seats.iter_mut().take_while(|seat| seat.used == 1) {
        seat.state = member_state::IDLE;
    }
    members.healthy = [0; 32];
}

/// Cancel all joins for the next epoch. The members must join again, because the owner of a halted run may change what it
/// asks for.
pub fn clear_waiting(members: &mut Members) {
    // Eight at a time: checking each seat for use would cost half as much again.
    for seats in members.seats.chunks_exact_mut(8).take_while(|seats| seats[0].used == 1) {
        for seat in seats {
            if seat.pending == pending::WAITS {
                seat.pending = pending::NONE;
            }
        }
    }
}

/// Return the members that an authority has removed or barred.
pub fn unwanted(members: &Members) -> Bitmap {
    collect(members, |seat| seat.pending >= pending::REMOVED)
}

/// Remove from the finishers the members that an authority removed or barred while an epoch ran.
#[inline(never)]
pub fn remove_unwanted_finishers(run: &mut Run, members: &Members) {
    run.finishers = bitmap::without(&run.finishers, &unwanted(members));
}

/// Return the absent established members that the run waits for: all that no authority removed, or none if those that
/// already wait suffice (`provisional::ends_wait`).
#[inline(never)]
pub fn expected(run: &Run, members: &Members, pending: &Bitmap) -> Bitmap {
    if provisional::ends_wait(run, members, pending) {
        return [0; 32];
    }
    bitmap::without(&wanted_established(members), pending)
}

/// Return the established members that no authority has removed or barred.
fn wanted_established(members: &Members) -> Bitmap {
    bitmap::without(&members.established, &unwanted(members))
}

/// Return the used seats that match `condition`.
#[inline(always)]
fn collect(members: &Members, condition: impl Fn(&Seat) -> bool) -> Bitmap {
    let mut result = [0; 32];
    for (byte, seats) in result.iter_mut().zip(members.seats.chunks_exact(8)) {
        let Ok([a, b, c, d, e, f, g, h]) = <&[Seat; 8]>::try_from(seats) else { break };
        let flag = |seat: &Seat, bit: u8| u8::from(condition(seat)) << bit; // unrolled: a loop costs twice as much
        *byte = flag(a, 0) | flag(b, 1) | flag(c, 2) | flag(d, 3) | flag(e, 4) | flag(f, 5) | flag(g, 6) | flag(h, 7);
        if h.used == 0 {
            break;
        }
    }
    result
}

/// What a join needs besides its parameters.
pub struct JoinContext<'a> {
    /// The membership of the wallet that joins.
    pub own: &'a mut Membership,
    /// The membership of the wallet whose seat it takes, if any.
    pub evicted: Option<&'a mut Membership>,
    /// The run knows levels that its durable checkpoint does not contain.
    pub unsaved: bool,
}

/// Give the signer a seat in the next epoch. Return whether it had none.
///
/// A member of the running epoch keeps its key, tier and weight until the epoch ends, because the assignments of past
/// rounds are computed from them.
#[inline(never)]
pub fn join(
    run: &mut Run,
    members: &mut Members,
    context: &mut JoinContext,
    params: &JoinParams,
    moment: &Moment,
) -> Result<bool> {
    let index = claim(run, members, context, moment.now)?;
    membership::check_bond(context.own, run.config.join_bond)?;
    let seat = &mut members.seats[index];
    if seat.state == member_state::IDLE {
        if seat.tier != params.tier {
            bitmap::clear(&mut run.finishers, index as u8); // it held other levels
            bitmap::clear(&mut members.established, index as u8);
        }
        seat.p2p = params.p2p;
        seat.tier = params.tier;
        seat.declared = params.weight;
    }
    let added = seat.pending != pending::WAITS;
    seat.pending = pending::WAITS;
    if params.stateless {
        forget_replica(run, members, index as u8);
    }
    Ok(added)
}

/// Return the seat of the wallet, giving it one if it has none. This synchronises the seat with the wallet's
/// membership, and writes what the seat knew of an evicted wallet into that wallet's membership.
#[inline(never)]
fn claim(run: &mut Run, members: &mut Members, context: &mut JoinContext, now: u64) -> Result<usize> {
    let JoinContext { own, evicted, unsaved } = context;
    let index = choose(run, members, &own.wallet, &ReservedSeats::new(run, members, *unsaved, now))?;
    let seat = &members.seats[index];
    if seat.used == 1 && address_eq(&seat.signer, &own.wallet) {
        membership::settle(run, members, index, own);
        return Ok(index);
    }
    if seat.declared > 0 {
        let evicted = evicted.as_mut().filter(|evicted| address_eq(&evicted.wallet, &seat.signer));
        let evicted = evicted.ok_or(CoordinatorError::WrongEvicted)?;
        membership::settle(run, members, index, evicted);
    }
    bitmap::clear(&mut run.finishers, index as u8);
    bitmap::clear(&mut members.established, index as u8);
    members.seats[index] =
        Seat { signer: own.wallet, points: own.points, slashed: own.slashed, used: 1, ..bytemuck::Zeroable::zeroed() };
    Ok(index)
}

/// Cancel a member's join for the next epoch, and no longer count it as a holder of the model. The member stays in the
/// running epoch. `barred` says whether it may join again.
pub fn kick(run: &mut Run, members: &mut Members, index: usize, barred: bool) {
    members.seats[index].pending = if barred { pending::BARRED } else { pending::REMOVED };
    if run.halted() || run.state == run_state::WAITING_FOR_MEMBERS {
        bitmap::clear(&mut run.finishers, index as u8);
    }
}

/// Eject a member of the running epoch and forfeit its bond, even if it has left or was dropped. Return whether it was
/// in the epoch and not ejected before.
#[inline(never)]
pub fn eject(run: &mut Run, members: &mut Members, seat: u8) -> bool {
    if matches!(members.seats[seat as usize].state, member_state::IDLE | member_state::EJECTED) {
        return false;
    }
    exit(run, members, &bitmap::only(seat), member_state::EJECTED);
    bitmap::set(&mut members.forfeited, seat);
    let pending = &mut members.seats[seat as usize].pending;
    if *pending == pending::WAITS {
        *pending = pending::NONE; // it has lost the bond with which it joined
    }
    committee::reelect(run, members);
    true
}

/// Record that a member has no replica: it can neither give the model to joiners nor finish the running epoch. If the
/// rounds have begun, this is not a withdrawal (`provisional::confirm`).
fn forget_replica(run: &mut Run, members: &mut Members, index: u8) {
    bitmap::clear(&mut run.finishers, index);
    if members.seats[index as usize].state == member_state::HEALTHY {
        let training = matches!(run.state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
        let state = if training { member_state::RESTARTED } else { member_state::WITHDRAWN };
        exit(run, members, &bitmap::only(index), state);
    }
}

/// Which absent members keep their seats. Otherwise the run would forget who holds its model.
struct ReservedSeats {
    /// The established members that the run waits for.
    expected: Bitmap,
    /// Finishers keep their seats: an epoch runs, or the time for which the next one waits for them is not over.
    finishers: bool,
    /// Finishers keep their seats while no trusted one waits, because no epoch begins then (`Machine::away`).
    finishers_until_trusted: bool,
    /// Established members that were in this epoch or in the last one keep their seats.
    recent: bool,
    /// Established members keep their seats even if they are away longer. With one less, no epoch could be undone.
    few_established: bool,
}

impl ReservedSeats {
    #[inline(never)]
    fn new(run: &Run, members: &Members, unsaved: bool, now: u64) -> Self {
        let few_established = bitmap::count(&wanted_established(members)) <= committee::MIN_ESTABLISHED;
        if run.state != run_state::WAITING_FOR_MEMBERS {
            return Self {
                expected: [0; 32],
                finishers: true,
                finishers_until_trusted: false,
                recent: true,
                few_established,
            };
        }
        let in_day = !elapsed(now, run.waiting_since, HOLDERS_WAIT);
        let expected = if in_day { expected(run, members, &pending(members)) } else { [0; 32] };
        let in_time = !elapsed(now, run.state_started_at, run.config.longest_latecomer_wait()) || unsaved && in_day;
        let from_peers = run.model_source == model_source::PEERS;
        Self {
            expected,
            finishers: from_peers && in_time,
            finishers_until_trusted: from_peers && unsaved,
            recent: in_time,
            few_established,
        }
    }
}

/// Return the seat that `signer` gets: its own; else one without an owner; else the idle one of least worth.
///
/// The worth of an idle seat depends on what its member did, the most important last: it was in this epoch or the last
/// one, delivered, earned points, finished the last epoch. Among equals, the seat of the member that was away longest
/// is worth least. `reserved` seats are not given away.
fn choose(run: &Run, members: &Members, signer: &Address, reserved: &ReservedSeats) -> Result<usize> {
    let mut own = None;
    let mut free = None;
    let mut idle = None;
    let trusted = levels::trusted(run, members);
    let mut trusted_waits = false;
    let mut lowest_worth = (u32::MAX, u32::MAX);
    for (index, seat) in members.seats.iter().enumerate() {
        if seat.used == 0 {
            free = free.or(Some(index));
            break;
        }
        if address_eq(&seat.signer, signer) {
            own = Some(index);
            break;
        }
        if seat.declared == 0 {
            free = free.or(Some(index)); // its owner has withdrawn
            continue;
        }
        let live = seat.pending == pending::WAITS || seat.state != member_state::IDLE;
        let finisher = bitmap::has(&run.finishers, index as u8);
        if live {
            trusted_waits |= bitmap::has(&trusted, index as u8) && seat.pending == pending::WAITS;
            continue;
        }
        let recent = seat.last_epoch.saturating_add(1) >= run.epoch;
        let needed = reserved.few_established && seat.pending < pending::REMOVED || reserved.recent && recent;
        let stays = needed && bitmap::has(&members.established, index as u8);
        if stays || bitmap::has(&reserved.expected, index as u8) {
            continue;
        }
        let merits = [recent, seat.weight > 1, seat.points > 0, finisher]; // the last one counts most
        let rank = merits.iter().rev().fold(0, |rank, merit| 2 * rank + u32::from(*merit));
        let worth = (rank, seat.last_epoch);
        if idle.is_none() || worth < lowest_worth {
            idle = Some(index);
            lowest_worth = worth;
        }
    }
    // A finisher's seat is worth most, so it is the candidate only if no other seat is left.
    let finishers_stay = reserved.finishers || reserved.finishers_until_trusted && !trusted_waits;
    let idle = idle.filter(|index| !(finishers_stay && bitmap::has(&run.finishers, *index as u8)));
    let chosen = own.or(free).or(idle);
    chosen.ok_or_else(|| CoordinatorError::MembersFull.into())
}
