//! Elect the witnesses of a round.
//!
//! Every order shuffles the members that began the epoch. So a member that leaves neither moves the others nor chooses
//! an order: the next in line takes its place.

use super::{bitmap, levels, seeds, shuffle::Order};
use crate::{
    constants::Bitmap,
    state::{established_only, run_state, Members, Round, Run},
};
use alloc::vec::Vec;

pub const WITNESS: &[u8] = b"witness";
pub const DATA: &[u8] = b"data";
pub const COOLDOWN: &[u8] = b"cooldown";
pub const CHECKPOINT: &[u8] = b"checkpoint";

/// Minimum number of established witnesses, so that no single one decides alone.
pub const MIN_ESTABLISHED: u32 = 3;

/// Return the order of the ranks of the members that `began` the epoch, for one purpose of a round.
pub fn order(round: &Round, began: &Bitmap, purpose: &[u8]) -> Order {
    Order::new(seeds::of_purpose(round.seed, purpose), bitmap::count(began) as usize)
}

/// Return the first `count` seats of `set`, in an order of the members that `began` the epoch.
fn first_seats(order: &Order, began: &Bitmap, set: &Bitmap, count: usize) -> Bitmap {
    let (seats, _) = bitmap::by_rank(began);
    let mut result = [0; 32];
    let ordered = order.ranks().iter().map(|rank| seats[*rank as usize]);
    for seat in ordered.filter(|seat| bitmap::has(set, *seat)).take(count) {
        bitmap::set(&mut result, seat);
    }
    result
}

/// Return the `count` witnesses of a round if all members may be elected and nobody leaves: the first of its roster.
pub fn drawn(run: &Run, round: &Round, count: usize) -> Bitmap {
    let gone = bitmap::count(&bitmap::without(&run.began, &round.roster)) as usize;
    let state = seeds::of_purpose(round.seed, WITNESS);
    let order = Order::first(state, bitmap::count(&run.began) as usize, count.saturating_add(gone));
    first_seats(&order, &run.began, &round.roster, count)
}

/// Return how many witnesses a round should have (0 = all), given the config's `nodes`. A quorum of established
/// witnesses is at least two, so a round that only they witness never has one alone.
pub fn wanted_witnesses(nodes: u8, only_established: bool) -> u8 {
    if only_established && nodes == 1 {
        2
    } else {
        nodes
    }
}

/// Return how many witnesses are elected among `clients` members if `nodes` are wanted (0 = all): at most 32.
pub fn elected(nodes: u8, clients: u16) -> u8 {
    let available = if nodes == 0 { clients } else { u16::from(nodes).min(clients) };
    available.min(crate::constants::MAX_WITNESSES as u16) as u8
}

/// Return the members of the running round that have attested or still can. If a member leaves before it attests, the
/// next in the order of the witnesses takes its place; a vote that was cast stays.
fn seated(round: &Round, members: &Members) -> Bitmap {
    bitmap::both(&round.roster, &bitmap::either(&round.attested, &members.healthy))
}

/// Return whether only established members witness the rounds of the epoch.
///
/// A seat costs little, and a third of the witnesses can stop a run or deny every result. So newcomers train for an
/// epoch before they witness, if enough established members that hold all levels began the epoch. A warm-up has
/// witnesses of both kinds, because it waits for newcomers too.
pub fn only_established_witness(run: &Run, members: &Members) -> bool {
    run.levels_established == levels::all(run.levels) && bitmap::count(&members.judges) >= MIN_ESTABLISHED
}

/// Return the members that may be elected as witnesses of a round.
pub fn electors(run: &Run, members: &Members, round: &Round) -> Bitmap {
    if round.established != established_only::NOTHING {
        members.judges
    } else {
        run.began
    }
}

/// Return the number of witnesses whose quorum may drop a member: as many as could be elected, even if the config
/// elects fewer. If few are elected, chance may give all of them to one person.
#[inline(never)]
pub fn drop_electorate(run: &Run, members: &Members, closed: &Round) -> u32 {
    let elected = u32::from(closed.elected);
    if run.config.witness_nodes == 0 {
        return elected;
    }
    let eligible = bitmap::both(&closed.roster, &electors(run, members, closed));
    elected.max(u32::from(self::elected(0, bitmap::count(&eligible) as u16)))
}

/// Lower the number of elected witnesses after a member has gone, if fewer can still attest: then all of these are
/// witnesses. Only the member itself or a quorum can take it out of the epoch, so other members' silence never shrinks
/// the quorum. Votes that were cast still count.
#[inline(never)]
pub fn reelect(run: &mut Run, members: &Members) {
    if matches!(run.state, run_state::WARMUP | run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        let head = run.ring(0);
        let seated = seated(&run.rounds[head], members);
        let available = bitmap::count(&bitmap::both(&seated, &electors(run, members, &run.rounds[head])));
        let elected = u32::from(run.rounds[head].elected);
        run.rounds[head].elected = elected.min(available) as u8;
    }
}

/// Return whether a healthy member of the running round is one of its witnesses.
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
    let elected = Order::first(state, bitmap::count(&electors) as usize, round.elected as usize);
    let rank = bitmap::rank(&electors, seat) as u8;
    // The first of the order stay witnesses when others leave, so this cheap test settles most cases.
    elected.ranks().contains(&rank) || bitmap::has(&witnesses(run, members, round), seat)
}

/// Return the witnesses of the running round: the first `elected` of the seated electors, in the round's order.
#[inline(never)]
pub fn witnesses(run: &Run, members: &Members, round: &Round) -> Bitmap {
    let electors = electors(run, members, round);
    let seated = bitmap::both(&seated(round, members), &electors);
    let elected = usize::from(round.elected);
    if elected >= bitmap::count(&seated) as usize {
        return seated;
    }
    first_seats(&order(round, &electors, WITNESS), &electors, &seated, elected)
}

/// Return the position of every rank in the order of one purpose.
#[inline(never)]
pub fn positions(round: &Round, began: &Bitmap, purpose: &[u8]) -> Vec<u8> {
    let order = order(round, began, purpose);
    let mut positions = alloc::vec![0; order.ranks().len()];
    for (position, rank) in order.ranks().iter().enumerate() {
        positions[*rank as usize] = position as u8;
    }
    positions
}
