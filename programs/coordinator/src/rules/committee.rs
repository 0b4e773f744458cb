//! Who witnesses and who verifies in a round.
//!
//! Every order is of the members that began the epoch. So a member that leaves, or is dropped, moves no other, and can
//! choose no order: a seat that becomes free goes to the next in line.
//!
//! A seat costs little, and a third of the witnesses can stop a run or say that nobody else delivered. So where enough of
//! those in it are established, and hold all levels, the witnesses of a round are of these alone: newcomers, however many,
//! train and deliver for an epoch before they have a word. In warm-up all have one, because it waits for them too.

use super::{bitmap, levels, seeds, shuffle::Order};
use crate::{
    constants::{Bitmap, MAX_VERDICTS},
    state::{established_only, run_state, Members, Round, Run},
};
use alloc::vec::Vec;

pub const WITNESS: &[u8] = b"witness";
pub const COMMITTEE: &[u8] = b"committee";
pub const DATA: &[u8] = b"data";
pub const COOLDOWN: &[u8] = b"cooldown";
pub const CHECKPOINT: &[u8] = b"checkpoint";

/// The least number of members of which one alone decides nothing.
pub const MIN_ESTABLISHED: u32 = 3;

/// The order of the ranks of those who `began` the epoch, for one purpose of a round.
pub fn order(round: &Round, began: &Bitmap, purpose: &[u8]) -> Order {
    Order::new(seeds::of_purpose(round.seed, purpose), bitmap::count(began) as usize)
}

/// The ranks among which the first `count` members of a round are, in that order: `count` of them if nobody has left, else all.
pub fn first(round: &Round, began: &Bitmap, purpose: &[u8], count: usize) -> Order {
    let len = bitmap::count(began) as usize;
    let drawn = if round.roster == *began { count } else { len };
    Order::first(seeds::of_purpose(round.seed, purpose), len, drawn)
}

/// The first `count` seats of a `set` in an order of those who `began`.
fn take(order: &Order, began: &Bitmap, set: &Bitmap, count: usize) -> Bitmap {
    let (seats, _) = bitmap::by_rank(began);
    let mut result = [0; 32];
    let ordered = order.ranks().iter().map(|rank| seats[*rank as usize]);
    for seat in ordered.filter(|seat| bitmap::has(set, *seat)).take(count) {
        bitmap::set(&mut result, seat);
    }
    result
}

/// The witnesses of a round if all members elect them and nobody leaves: the first `most` of its roster.
pub fn drawn(run: &Run, round: &Round, most: usize) -> Bitmap {
    let gone = bitmap::count(&bitmap::without(&run.began, &round.roster)) as usize;
    let state = seeds::of_purpose(round.seed, WITNESS);
    let order = Order::first(state, bitmap::count(&run.began) as usize, most.saturating_add(gone));
    take(&order, &run.began, &round.roster, most)
}

/// Witnesses elected among `clients` members when the config asks for `nodes` (0 = all), at most 32.
pub fn elected(nodes: u8, clients: u16) -> u8 {
    let wanted = if nodes == 0 { clients } else { u16::from(nodes).min(clients) };
    wanted.min(crate::constants::MAX_WITNESSES as u16) as u8
}

/// Members of the running round that have attested or still can. Who leaves makes room for the next in the order of the
/// witnesses; a vote that counts does not.
fn seated(round: &Round, members: &Members) -> Bitmap {
    bitmap::both(&round.roster, &bitmap::either(&round.attested, &members.healthy))
}

/// Return whether only established members witness the rounds of an epoch.
pub fn only_established_witness(run: &Run, members: &Members) -> bool {
    run.levels_established == levels::all(run.levels) && bitmap::count(&members.judges) >= MIN_ESTABLISHED
}

/// Return the members of whom the witnesses of a round are elected.
pub fn electors(run: &Run, members: &Members, round: &Round) -> Bitmap {
    if round.established != established_only::NOTHING {
        members.judges
    } else {
        run.began
    }
}

/// The number of witnesses whose quorum drops a member: as many as could be elected, although the config may ask for
/// fewer. Chance may make a few witnesses all one person's.
#[inline(never)]
pub fn jury(run: &Run, members: &Members, closed: &Round) -> u32 {
    let elected = u32::from(closed.elected);
    if run.config.witness_nodes == 0 {
        return elected;
    }
    let among = bitmap::both(&closed.roster, &electors(run, members, closed));
    elected.max(u32::from(self::elected(0, bitmap::count(&among) as u16)))
}

/// Elects again among those who stayed, after a member has gone: where fewer are left than were elected, all of these are
/// witnesses, and their quorum counts. It has gone by its own word or by that of a quorum, so a vote that
/// counts still is one of the denominator, and nobody else's silence makes that smaller.
#[inline(never)]
pub fn reelect(run: &mut Run, members: &Members) {
    if matches!(run.state, run_state::WARMUP | run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        let head = run.ring(0);
        let seated = seated(&run.rounds[head], members);
        let left = bitmap::count(&bitmap::both(&seated, &electors(run, members, &run.rounds[head])));
        let elected = u32::from(run.rounds[head].elected);
        run.rounds[head].elected = elected.min(left) as u8;
    }
}

/// Whether a healthy member of the running round is one of its witnesses.
#[inline(never)]
pub fn is_witness(run: &Run, members: &Members, round: &Round, seat: u8) -> bool {
    if !bitmap::has(&round.roster, seat) {
        return false;
    }
    if u16::from(round.elected) >= round.clients {
        return true;
    }
    let electors = electors(run, members, round);
    if !bitmap::has(&electors, seat) {
        return false;
    }
    let state = seeds::of_purpose(round.seed, WITNESS);
    let first = Order::first(state, bitmap::count(&electors) as usize, round.elected as usize);
    let rank = bitmap::rank(&electors, seat) as u8;
    // when a member leaves, those who were first stay witnesses
    first.ranks().contains(&rank) || bitmap::has(&witnesses(run, members, round), seat)
}

/// The witnesses of the running round: the first `elected` of the electors that are seated, in the round's order.
#[inline(never)]
pub fn witnesses(run: &Run, members: &Members, round: &Round) -> Bitmap {
    let electors = electors(run, members, round);
    let seated = bitmap::both(&seated(round, members), &electors);
    let elected = usize::from(round.elected);
    if elected >= bitmap::count(&seated) as usize {
        return seated;
    }
    take(&order(round, &electors, WITNESS), &electors, &seated, elected)
}

/// Whether a seat is one of the first `verifiers` members of a round in the order of the committee.
#[inline(never)]
pub fn is_verifier(round: &Round, began: &Bitmap, seat: u8, verifiers: u32) -> bool {
    let order = first(round, began, COMMITTEE, verifiers as usize);
    verifiers > 0 && bitmap::has(&take(&order, began, &round.roster, verifiers as usize), seat)
}

/// How many of `clients` members verify: the percentage rounded down, no more than verdicts that can be stored about one
/// of them, and at least one member always trains.
pub fn verifiers(clients: u16, percent: u8) -> u32 {
    let clients = u32::from(clients);
    (clients * u32::from(percent) / 100).min(clients.saturating_sub(1)).min(MAX_VERDICTS as u32)
}

/// Position of every rank in the order of one purpose.
#[inline(never)]
pub fn positions(round: &Round, began: &Bitmap, purpose: &[u8]) -> Vec<u8> {
    let order = order(round, began, purpose);
    let mut positions = alloc::vec![0; order.ranks().len()];
    for (position, rank) in order.ranks().iter().enumerate() {
        positions[*rank as usize] = position as u8;
    }
    positions
}
