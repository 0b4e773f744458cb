//! Of which levels all witnesses of a round have the bytes, also those that do not hold them.
//!
//! Where members are more than witnesses, few holders of a level or none may be drawn, and those that are may be of one
//! person. So where not all of them are, and not many, every witness records a result only if it has these levels of it
//! too: that is what clients do, and here such a level is counted as the rest of the result. Drawn means, if nobody
//! leaves: by what is fixed when the round begins. It matters here for levels that nobody has shown before, for which
//! all members witness; of the others those who have shown them say who delivers them.

use super::{bitmap, committee, level_holders, levels};
use crate::{constants::*, state::*};

/// The number of holders among the witnesses that is enough to say who delivers a level.
const MANY: u32 = MAX_WITNESSES as u32 / 2;

/// The mask of those levels, of the ones that nobody has shown before; never the last, which all hold.
#[inline(never)]
pub fn had_by_all(run: &Run, members: &Members, round: &Round) -> u8 {
    let new = levels::all(run.levels.saturating_sub(1)) & !run.levels_established;
    let clients = bitmap::count(&round.roster);
    let most = u32::from(committee::elected(run.config.witness_nodes, clients as u16));
    if new == 0 || most >= clients {
        return 0;
    }
    let drawn = committee::drawn(run, round, most as usize);
    let (mut held, mut thin) = ([0; 32], 0);
    for (level, of_tier) in level_holders::by_tier(members).iter().enumerate() {
        held = bitmap::either(&held, of_tier);
        let there = bitmap::both(&held, &drawn);
        let others = bitmap::intersects(&bitmap::without(&held, &drawn), &round.roster);
        thin |= u8::from(others && bitmap::count(&there) < MANY) << level;
    }
    thin & new
}
