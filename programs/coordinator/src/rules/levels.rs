//! What the run knows of the levels of its model: who holds them, which copy is newest, and where members load them.

use super::{bitmap, level_holders};
use crate::{
    constants::{Bitmap, Hash, MAX_LEVELS},
    state::*,
};

/// The hash of a level that was trained and not attested since. No durable checkpoint contains it.
pub const UNATTESTED: Hash = [0xff; 32];

/// Return the mask of all `levels` (at most 8).
pub fn all(levels: u8) -> u8 {
    ((1u16 << levels.min(MAX_LEVELS as u8)) - 1) as u8
}

/// Return the mask of the levels that members of `set` hold. A tier holds its own level and all higher ones.
#[inline(never)]
pub fn held_by(run: &Run, members: &Members, set: &Bitmap) -> u8 {
    held_by_tiers(run, &level_holders::by_tier(members), set)
}

/// Return the mask of the levels that members of `set` hold, given all seats by tier. All seats of `set` must be used.
fn held_by_tiers(run: &Run, by_tier: &[Bitmap; MAX_LEVELS], set: &Bitmap) -> u8 {
    let smallest = by_tier.iter().position(|of_tier| bitmap::intersects(of_tier, set)).unwrap_or(MAX_LEVELS);
    all(run.levels) & !all(smallest as u8)
}

/// Return the finishers whose claim to the model an epoch trusts: the established ones, or all if none is established.
pub fn trusted(run: &Run, members: &Members) -> Bitmap {
    let proven = bitmap::both(&run.finishers, &members.established);
    if bitmap::is_empty(&proven) {
        run.finishers
    } else {
        proven
    }
}

/// Masks of the levels that trusted finishers hold.
pub struct Held {
    /// Levels of the trusted finishers that wait.
    pub by_waiting: u8,
    /// Levels of absent trusted finishers that no waiting one holds and that are not in the durable checkpoint.
    pub by_absent: u8,
}

/// Return which levels an epoch of the `pending` members would have, and which it would lack.
#[inline(never)]
pub fn held(run: &Run, model: &Model, members: &Members, pending: &Bitmap) -> Held {
    let trusted = trusted(run, members);
    let by_tier = &level_holders::by_tier(members);
    let by_waiting = held_by_tiers(run, by_tier, &bitmap::both(&trusted, pending));
    let missing = unsaved(run, model) & !by_waiting;
    let by_absent = missing & held_by_tiers(run, by_tier, &trusted);
    Held { by_waiting, by_absent }
}

/// Return the mask of the levels that the running epoch may have changed, including those that only members that left
/// hold.
#[inline(never)]
pub fn trained(run: &Run, members: &Members) -> u8 {
    if run.step == run.start_step {
        return 0; // only attested results change levels
    }
    let first_applied = 1 + u32::from(run.config.overlap); // the round in which members apply their first results
    let used = members.seats.iter().take_while(|seat| seat.used == 1);
    from_smallest(
        run,
        used.filter(|seat| match seat.state {
            member_state::IDLE => false,
            member_state::HEALTHY => true,
            _ => seat.exited_height >= first_applied,
        }),
    )
}

/// Return the mask of the levels that the given members hold.
fn from_smallest<'a>(run: &Run, holders: impl Iterator<Item = &'a Seat>) -> u8 {
    let smallest = holders.map(|seat| seat.tier).min().unwrap_or(MAX_LEVELS as u8);
    all(run.levels) & !all(smallest)
}

/// Return the mask of the levels whose newest contents are not in the durable checkpoint.
#[inline(never)]
pub fn beyond_durable(run: &Run, model: &Model) -> u8 {
    let hashes = run.level_hashes.iter().zip(model.checkpoint_hashes.iter()).enumerate();
    let beyond = hashes.fold(0, |mask, (level, (newest, durable))| mask | u8::from(newest != durable) << level);
    beyond & all(run.levels)
}

/// Return the mask of the levels that would be lost without their holders: they are attested, and not in the durable
/// checkpoint. All members begin an unattested level from that checkpoint, even if one holds a newer copy.
pub fn unsaved(run: &Run, model: &Model) -> u8 {
    beyond_durable(run, model) & run.levels_attested
}

/// Make members load these `levels` (a mask) from the durable checkpoint. They load the others from each other.
pub fn go_back(run: &mut Run, model: &Model, levels: u8) {
    for level in (0..MAX_LEVELS).filter(|level| levels >> level & 1 == 1) {
        let durable = model.checkpoint_hashes[level];
        run.level_hashes[level] = durable;
        run.levels_attested &= !(1 << level);
        run.levels_attested |= u8::from(durable != [0; 32]) << level;
    }
}

/// Make members load all levels from the durable checkpoint. Its known hashes become the attested ones.
#[inline(never)]
pub fn use_durable(run: &mut Run, model: &Model) {
    run.model_source = model_source::DURABLE;
    run.levels_lost = 0;
    run.level_hashes = model.checkpoint_hashes;
    run.attested_step = model.checkpoint_step;
    run.attested_data_index = model.checkpoint_data_index;
    run.levels_attested = 0;
    for (level, hash) in model.checkpoint_hashes.iter().enumerate() {
        if *hash != [0; 32] {
            run.levels_attested |= 1 << level;
        }
    }
}
