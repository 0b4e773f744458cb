//! The slots of members: finding, choosing, counting.

use super::{bitmap, moment::elapsed, Moment};
use crate::{constants::*, errors::CoordinatorError, instructions::JoinParams, state::*};
use anchor_lang::{address_eq, prelude::*};

/// The slot that belongs to `signer`. Used slots come first, so the search ends at the first unused one.
pub fn find(members: &Members, signer: &Address) -> Option<usize> {
    let used = members.slots.iter().take_while(|slot| slot.used == 1);
    used.enumerate().find(|(_, slot)| address_eq(&slot.signer, signer)).map(|(index, _)| index)
}

/// The signer owns `slot` and its member is healthy.
#[inline(never)]
pub fn check_healthy(members: &Members, slot: u8, signer: &Address) -> Result<()> {
    let member = &members.slots[slot as usize];
    let own = member.used == 1 && address_eq(&member.signer, signer);
    require!(own && member.state == member_state::HEALTHY, CoordinatorError::SlotMismatch);
    Ok(())
}

pub fn healthy(members: &Members) -> Bitmap {
    collect(members, |slot| slot.state == member_state::HEALTHY)
}

pub fn pending(members: &Members) -> Bitmap {
    collect(members, |slot| slot.pending == 1)
}

#[inline(always)]
fn collect(members: &Members, wanted: impl Fn(&Slot) -> bool) -> Bitmap {
    let mut result = [0; 32];
    for (byte, slots) in result.iter_mut().zip(members.slots.chunks_exact(8)) {
        let Ok([a, b, c, d, e, f, g, h]) = <&[Slot; 8]>::try_from(slots) else { break };
        let bit = |slot: &Slot, place: u8| u8::from(wanted(slot)) << place; // unrolled: a loop costs as much again
        *byte = bit(a, 0) | bit(b, 1) | bit(c, 2) | bit(d, 3) | bit(e, 4) | bit(f, 5) | bit(g, 6) | bit(h, 7);
        if h.used == 0 {
            break;
        }
    }
    result
}

/// Gives the signer a place in the next epoch; returns whether it had none.
///
/// Key, tier and weight of a member that belongs to the running epoch stay until that ends: past assignments of its
/// rounds are computed from them.
#[inline(never)]
pub fn join(
    run: &mut Run,
    members: &mut Members,
    (signer, params): (&Address, &JoinParams),
    moment: &Moment,
) -> Result<bool> {
    let index = choose(members, (signer, &params.p2p), &run.finishers, awaits_finishers(run, moment))?;
    let slot = &mut members.slots[index];
    if slot.used == 0 || !address_eq(&slot.signer, signer) {
        members.retired_points = members.retired_points.saturating_add(slot.points);
        bitmap::clear(&mut run.finishers, index as u8);
        *slot = bytemuck::Zeroable::zeroed();
        slot.signer = *signer;
        slot.used = 1;
    }
    if slot.state == member_state::IDLE {
        if slot.tier != params.tier {
            bitmap::clear(&mut run.finishers, index as u8); // what it held is not what it holds now
        }
        slot.p2p = params.p2p;
        slot.tier = params.tier;
        slot.weight = params.weight;
    }
    if params.stateless {
        forget_replica(run, slot, index as u8);
    }
    let added = slot.pending == 0;
    slot.pending = 1;
    Ok(added)
}

/// A member without a replica can neither give the model to joiners nor finish the running epoch.
fn forget_replica(run: &mut Run, slot: &mut Slot, index: u8) {
    bitmap::clear(&mut run.finishers, index);
    if slot.state == member_state::HEALTHY {
        slot.state = member_state::WITHDRAWN;
        slot.exited_height = run.exit_height();
    }
}

/// Whether those who hold the model still have the time to come back that an epoch waits for them.
fn awaits_finishers(run: &Run, moment: &Moment) -> bool {
    let time = u64::from(run.config.waiting_for_members_extra_time).saturating_add(run.config.warmup_time);
    let waiting = run.state == run_state::WAITING_FOR_MEMBERS && !elapsed(moment.now, run.state_started_at, time);
    waiting && run.model_source == model_source::PEERS
}

/// Own slot; else a never used one; else an idle one: of a member that did not finish the last epoch, then one without
/// points, then the one that was away longest. The slots of `finishers` are not given away while they are `awaited`:
/// the run would forget who holds its model.
#[inline(always)] // more arguments than a call on sBPF may have
fn choose(members: &Members, (signer, p2p): (&Address, &[u8; 32]), finishers: &Bitmap, awaited: bool) -> Result<usize> {
    let (mut own, mut fresh, mut idle) = (None, None, None);
    let mut least = (true, true, u32::MAX);
    for (index, slot) in members.slots.iter().enumerate() {
        if slot.used == 0 {
            fresh = Some(index);
            break;
        }
        let live = slot.pending == 1 || slot.state != member_state::IDLE;
        if address_eq(&slot.signer, signer) {
            own = Some(index);
            continue;
        }
        // also of one that is away: whoever took its key would keep it from coming back
        require!(slot.p2p != *p2p, CoordinatorError::P2pKeyTaken);
        let finisher = bitmap::has(finishers, index as u8);
        if live || finisher && awaited {
            continue;
        }
        let worth = (finisher, slot.points > 0, slot.last_epoch);
        if idle.is_none() || worth < least {
            (idle, least) = (Some(index), worth);
        }
    }
    let chosen = own.or(fresh).or(idle);
    chosen.ok_or_else(|| CoordinatorError::MembersFull.into())
}
