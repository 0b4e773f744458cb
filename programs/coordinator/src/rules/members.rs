//! The seats of members: finding, choosing, counting.

use super::{bitmap, committee, levels, membership, moment::elapsed, provisional, weights, Moment};
use crate::{constants::*, errors::CoordinatorError, instructions::JoinParams, state::*};
use anchor_lang::{address_eq, prelude::*};

/// The seat that belongs to `signer`. Used seats come first, so the search ends at the first unused one.
pub fn find(members: &Members, signer: &Address) -> Option<usize> {
    let used = members.seats.iter().take_while(|seat| seat.used == 1);
    used.enumerate().find(|(_, seat)| address_eq(&seat.signer, signer)).map(|(index, _)| index)
}

/// The signer owns `seat` and its member is healthy.
#[inline(never)]
pub fn check_healthy(members: &Members, seat: u8, signer: &Address) -> Result<()> {
    let member = &members.seats[seat as usize];
    let own = member.used == 1 && address_eq(&member.signer, signer);
    require!(own && member.state == member_state::HEALTHY, CoordinatorError::SeatMismatch);
    Ok(())
}

pub fn pending(members: &Members) -> Bitmap {
    collect(members, |seat| seat.pending == wish::WAITS)
}

/// Takes members out of the running epoch: those of `set` are `state` from now on. What they have shown stays, if it was
/// enough, unless they are convicted; but in cooldown it is settled whose word counts.
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
        let shown = if state == member_state::EJECTED { [0; 32] } else { weights::half_delivered(members) };
        members.proven = bitmap::without(&members.proven, &bitmap::without(set, &shown));
        if state == member_state::EJECTED {
            members.established = bitmap::without(&members.established, set);
        }
    }
    members.healthy = bitmap::without(&members.healthy, set);
}

/// Returns everybody to idle.
pub fn rest(members: &mut Members) {
    for seat in members.seats.iter_mut().take_while(|seat| seat.used == 1) {
        seat.state = member_state::IDLE;
    }
    members.healthy = [0; 32];
}

/// Members that wait must ask again: while a run is halted its owner may change what it asks for.
/// Eight at a time: to ask each whether it is used would cost half as much again.
pub fn forget_wishes(members: &mut Members) {
    for seats in members.seats.chunks_exact_mut(8).take_while(|seats| seats[0].used == 1) {
        for seat in seats {
            if seat.pending == wish::WAITS {
                seat.pending = wish::NONE;
            }
        }
    }
}

/// Return the members that an authority has removed or barred.
pub fn unwanted(members: &Members) -> Bitmap {
    collect(members, |seat| seat.pending >= wish::REMOVED)
}

/// Take the claim to the model from finishers that an authority removed or barred while an epoch ran.
#[inline(never)]
pub fn forget_unwanted(run: &mut Run, members: &Members) {
    run.finishers = bitmap::without(&run.finishers, &unwanted(members));
}

/// Return the established members that newcomers wait for: all that no authority removed. None if some of them wait that
/// end this (`provisional::ends_wait`).
#[inline(never)]
pub fn expected(run: &Run, members: &Members, pending: &Bitmap) -> Bitmap {
    if provisional::ends_wait(run, members, pending) {
        return [0; 32];
    }
    bitmap::without(&members.established, &unwanted(members))
}

#[inline(always)]
fn collect(members: &Members, wanted: impl Fn(&Seat) -> bool) -> Bitmap {
    let mut result = [0; 32];
    for (byte, seats) in result.iter_mut().zip(members.seats.chunks_exact(8)) {
        let Ok([a, b, c, d, e, f, g, h]) = <&[Seat; 8]>::try_from(seats) else { break };
        let bit = |seat: &Seat, place: u8| u8::from(wanted(seat)) << place; // unrolled: a loop costs as much again
        *byte = bit(a, 0) | bit(b, 1) | bit(c, 2) | bit(d, 3) | bit(e, 4) | bit(f, 5) | bit(g, 6) | bit(h, 7);
        if h.used == 0 {
            break;
        }
    }
    result
}

/// The memberships that a join needs: the wallet's own, and that of the wallet that loses the seat to it.
pub struct Papers<'a> {
    pub own: &'a mut Membership,
    pub evicted: Option<&'a mut Membership>,
    /// The run knows levels that its durable checkpoint does not have.
    pub unsaved: bool,
}

/// Gives the signer a place in the next epoch; returns whether it had none.
///
/// Key, tier and weight of a member that belongs to the running epoch stay until that ends: past assignments of its
/// rounds are computed from them.
#[inline(never)]
pub fn join(
    run: &mut Run,
    members: &mut Members,
    (papers, params): (&mut Papers, &JoinParams),
    moment: &Moment,
) -> Result<bool> {
    let index = claim(run, members, papers, moment.now)?;
    membership::check_bond(papers.own, run.config.join_bond)?;
    let seat = &mut members.seats[index];
    if seat.state == member_state::IDLE {
        if seat.tier != params.tier {
            bitmap::clear(&mut run.finishers, index as u8); // what it held is not what it holds now
            bitmap::clear(&mut members.established, index as u8);
        }
        seat.p2p = params.p2p;
        seat.tier = params.tier;
        seat.declared = params.weight;
    }
    let added = seat.pending != wish::WAITS;
    seat.pending = wish::WAITS;
    if params.stateless {
        forget_replica(run, members, index as u8);
    }
    Ok(added)
}

/// The seat of a wallet, which gets one if it has none. What seat and membership know of the wallet is the same then; what
/// the seat knew of another wallet is in that one's membership.
#[inline(never)]
fn claim(run: &mut Run, members: &mut Members, papers: &mut Papers, now: u64) -> Result<usize> {
    let Papers { own, evicted, unsaved } = papers;
    let index = choose(run, members, &own.wallet, &Awaited::new(run, members, *unsaved, now))?;
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
    let (signer, points, slashed) = (own.wallet, own.points, own.slashed);
    members.seats[index] = Seat { signer, points, slashed, used: 1, ..bytemuck::Zeroable::zeroed() };
    Ok(index)
}

/// Takes the member of a seat out of the line and off the sources of the model; `barred` tells others why. The running
/// epoch continues with it.
pub fn kick(run: &mut Run, members: &mut Members, index: usize, barred: bool) {
    members.seats[index].pending = if barred { wish::BARRED } else { wish::REMOVED };
    if run.halted() || run.state == run_state::WAITING_FOR_MEMBERS {
        bitmap::clear(&mut run.finishers, index as u8);
    }
}

/// Ejects a member of the running epoch, also one that left or was dropped before it was found out; returns whether it
/// was one, and was not ejected before. Its bond is forfeited.
#[inline(never)]
pub fn eject(run: &mut Run, members: &mut Members, seat: u8) -> bool {
    if matches!(members.seats[seat as usize].state, member_state::IDLE | member_state::EJECTED) {
        return false;
    }
    exit(run, members, &bitmap::only(seat), member_state::EJECTED);
    bitmap::set(&mut members.forfeited, seat);
    let pending = &mut members.seats[seat as usize].pending;
    if *pending == wish::WAITS {
        *pending = wish::NONE; // the bond that it asked with is lost
    }
    committee::reelect(run, members);
    true
}

/// A member without a replica can neither give the model to joiners nor finish the running epoch. It did not leave of its
/// own accord if the rounds have begun (`provisional::confirm`).
fn forget_replica(run: &mut Run, members: &mut Members, index: u8) {
    bitmap::clear(&mut run.finishers, index);
    if members.seats[index as usize].state == member_state::HEALTHY {
        let training = matches!(run.state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS);
        let state = if training { member_state::RESTARTED } else { member_state::WITHDRAWN };
        exit(run, members, &bitmap::only(index), state);
    }
}

/// When seats are not given away: the run would forget who holds its model.
struct Awaited {
    /// The established members that newcomers wait for.
    known: Bitmap,
    /// Finishers keep their seats: an epoch runs, or they still have the time that the next one waits for them.
    all: bool,
    /// Finishers keep their seats while none of the trusted ones waits, since no epoch begins then (`Machine::away`).
    first: bool,
    /// At the same time, established members keep their seats that were in this epoch or in the last one.
    recent: bool,
}

impl Awaited {
    #[inline(never)]
    fn new(run: &Run, members: &Members, unsaved: bool, now: u64) -> Self {
        if run.state != run_state::WAITING_FOR_MEMBERS {
            return Self { known: [0; 32], all: true, first: false, recent: true };
        }
        let in_day = !elapsed(now, run.state_started_at, HOLDERS_WAIT);
        let known = if in_day { expected(run, members, &pending(members)) } else { [0; 32] };
        let time = u64::from(run.config.waiting_for_members_extra_time).saturating_add(run.config.warmup_time);
        let in_time = !elapsed(now, run.state_started_at, time) || unsaved && in_day;
        let from_peers = run.model_source == model_source::PEERS;
        Self { known, all: from_peers && in_time, first: from_peers && unsaved, recent: in_time }
    }
}

/// Own seat; else one that is nobody's; else an idle one: of a member that did not finish the last epoch, then one without
/// points, then one that never delivered, then one that was in neither this epoch nor the last, then the one that was
/// away longest. Finishers and established members keep their seats while they are `awaited`.
fn choose(run: &Run, members: &Members, signer: &Address, awaited: &Awaited) -> Result<usize> {
    let (mut own, mut fresh, mut idle) = (None, None, None);
    let trusted = levels::trusted(run, members);
    let mut here = false;
    let mut least = (u32::MAX, u32::MAX);
    for (index, seat) in members.seats.iter().enumerate() {
        if seat.used == 0 {
            fresh = fresh.or(Some(index));
            break;
        }
        if address_eq(&seat.signer, signer) {
            own = Some(index);
            break;
        }
        if seat.declared == 0 {
            fresh = fresh.or(Some(index)); // its owner has withdrawn
            continue;
        }
        let live = seat.pending == wish::WAITS || seat.state != member_state::IDLE;
        let finisher = bitmap::has(&run.finishers, index as u8);
        if live {
            here |= bitmap::has(&trusted, index as u8) && seat.pending == wish::WAITS;
            continue;
        }
        let recent = seat.last_epoch.saturating_add(1) >= run.epoch;
        let stays = awaited.recent && recent && bitmap::has(&members.established, index as u8);
        if stays || bitmap::has(&awaited.known, index as u8) {
            continue;
        }
        let marks = [recent, seat.weight > 1, seat.points > 0, finisher];
        let rank = marks.iter().rev().fold(0, |rank, mark| 2 * rank + u32::from(*mark));
        let worth = (rank, seat.last_epoch);
        if idle.is_none() || worth < least {
            (idle, least) = (Some(index), worth);
        }
    }
    // a finisher's seat comes last, so it is chosen only if no other is left
    let kept = awaited.all || awaited.first && !here;
    let idle = idle.filter(|index| !(kept && bitmap::has(&run.finishers, *index as u8)));
    let chosen = own.or(fresh).or(idle);
    chosen.ok_or_else(|| CoordinatorError::MembersFull.into())
}
