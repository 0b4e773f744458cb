//! Decide which levels all witnesses of a round fetch, even those that do not hold them.
//!
//! If few holders of a level are drawn as witnesses, one person may own all of them. Then every witness records a
//! result only if it has the result's bytes of that level. Clients apply this to all levels. The program needs it only
//! for levels without established holders, because established holders judge the others.

use super::{bitmap, committee, level_holders, levels};
use crate::{constants::*, state::*};

/// Minimum number of holders among the witnesses that can judge a level alone.
const MANY: u32 = MAX_WITNESSES as u32 / 2;

/// Return the mask of the levels without established holders that all witnesses fetch. The last level is never one of
/// them, because all members hold it.
///
/// This counts the witnesses that are elected if nobody leaves. They are fixed when the round begins, so the mask does
/// not change during the round.
#[inline(never)]
pub fn fetched_by_all(run: &Run, members: &Members, round: &Round) -> u8 {
    let new = levels::all(run.levels.saturating_sub(1)) & !run.levels_established;
    let clients = bitmap::count(&round.roster);
    let witnesses = u32::from(committee::elected(run.config.witness_nodes, clients as u16));
    if new == 0 || witnesses >= clients {
        return 0;
    }
    let drawn = committee::drawn(run, round, witnesses as usize);
    let mut holders = [0; 32];
    let mut fetched_by_all = 0;
    for (level, of_tier) in level_holders::by_tier(members).iter().enumerate() {
        holders = bitmap::either(&holders, of_tier);
        let drawn_holders = bitmap::both(&holders, &drawn);
        let some_undrawn = bitmap::intersects(&bitmap::without(&holders, &drawn), &round.roster);
        fetched_by_all |= u8::from(some_undrawn && bitmap::count(&drawn_holders) < MANY) << level;
    }
    fetched_by_all & new
}
