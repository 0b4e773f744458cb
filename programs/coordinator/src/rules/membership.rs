//! Create and check memberships, copy a seat's record into its owner's membership, and move bonds.
//!
//! A seat may get another owner, the membership stays. So the record is copied before the seat changes hands and when
//! the owner leaves. An ejection marks the bond as forfeited by a bit in `Members`, because the instruction may lack
//! the membership. The mark is copied with the record, and no bond is returned before.

use super::{bitmap, weights};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::{accounts::Account, address_eq, prelude::*};

/// Solana's incinerator, which destroys what it receives. So nobody gains from an ejection, not even the run's owner.
pub const INCINERATOR: Address = anchor_lang::address!("1nc1nerator11111111111111111111111111111111");

/// Identifies the membership of one wallet in one run.
#[derive(Clone, Copy)]
pub struct MembershipId<'a> {
    pub run: &'a Address,
    pub created: u64,
    pub wallet: &'a Address,
}

impl MembershipId<'_> {
    /// Create the account at its address. It contains only its identity and its sponsor.
    #[inline(never)]
    pub fn create(&self, view: &AccountView, payer: &AccountView) -> Result<()> {
        let created = self.created.to_le_bytes();
        let seeds: [&[u8]; 4] = [MEMBERSHIP_SEED, self.run.as_ref(), &created, self.wallet.as_ref()];
        let blank = Blank {
            view: *view,
            seeds: &seeds,
            space: 8 + core::mem::size_of::<Membership>(),
            discriminator: Membership::DISCRIMINATOR,
        };
        let bump = blank.create(payer)?;
        // SAFETY: this instruction created the account, and nothing else borrows its bytes.
        let mut membership = unsafe { Account::<Membership>::load_mut(*view)? };
        membership.run = *self.run;
        membership.wallet = *self.wallet;
        membership.sponsor = *payer.address();
        membership.created = self.created;
        membership.bump = bump;
        membership.version = VERSION;
        Ok(())
    }

    /// Return the account if it is this membership. The caller must not load the account twice.
    #[inline(never)]
    pub fn open(&self, view: &AccountView) -> Result<Account<Membership>> {
        require!(view.owned_by(&crate::ID), CoordinatorError::NotEnrolled);
        // SAFETY: the caller loads each account once.
        let membership = unsafe { Account::<Membership>::load_mut(*view)? };
        let same = address_eq(&membership.run, self.run)
            && membership.created == self.created
            && address_eq(&membership.wallet, self.wallet);
        require!(same, CoordinatorError::WrongMembership);
        check_address(&membership, view.address())?;
        Ok(membership)
    }
}

/// Return whether the account exists and belongs to the program.
pub fn exists(view: &AccountView) -> bool {
    view.owned_by(&crate::ID)
}

/// Refuse a membership that is not at its own address. `create` ensures this too.
#[inline(never)]
pub fn check_address(membership: &Membership, address: &Address) -> Result<()> {
    let created = membership.created.to_le_bytes();
    let bump = [membership.bump];
    let seeds: [&[u8]; 5] = [MEMBERSHIP_SEED, membership.run.as_ref(), &created, membership.wallet.as_ref(), &bump];
    anchor_lang::verify_program_address(&seeds, &crate::ID, address)?;
    Ok(())
}

/// Refuse a member that is barred, is not enrolled, or has paid less than the `bond` (lamports) that the run asks for
/// now.
pub fn check_bond(membership: &Membership, bond: u64) -> Result<()> {
    require!(membership.barred == 0, CoordinatorError::Barred);
    require!(membership.enrolled == 1, CoordinatorError::NotEnrolled);
    require!(membership.bond >= bond, CoordinatorError::BondTooLow);
    Ok(())
}

/// Copy the record of a seat into its owner's membership. Return whether the bond was marked as forfeited.
#[inline(never)]
pub fn settle(run: &Run, members: &mut Members, index: usize, membership: &mut Membership) -> bool {
    let seat = &members.seats[index];
    membership.points = seat.points;
    membership.slashed = seat.slashed;
    // If the epoch was attempted twice, the wallet may have been in the first attempt only.
    let began = bitmap::has(&run.began, index as u8);
    if began && seat.weight > 0 && seat.last_epoch == members.epoch {
        let delivered = weights::delivered(members, index as u8) as u16;
        let due = members.judged as u16;
        if membership.epoch != members.epoch {
            membership.epoch = members.epoch;
            membership.epoch_delivered = 0;
            membership.epoch_due = 0;
        }
        let new_delivered = delivered.saturating_sub(membership.epoch_delivered);
        let new_due = due.saturating_sub(membership.epoch_due);
        membership.delivered = membership.delivered.saturating_add(u32::from(new_delivered));
        membership.due = membership.due.saturating_add(u32::from(new_due));
        membership.epoch_delivered = delivered;
        membership.epoch_due = due;
    }
    let marked = bitmap::has(&members.forfeited, index as u8);
    if marked {
        bitmap::clear(&mut members.forfeited, index as u8);
        membership.forfeited = membership.forfeited.saturating_add(membership.bond);
        membership.bond = 0;
        membership.ejections = membership.ejections.saturating_add(1);
    }
    marked
}

/// Destroy the forfeited lamports.
pub fn burn(membership: &mut Membership, from: &AccountView, incinerator: &AccountView) -> Result<()> {
    let lamports = membership.forfeited;
    membership.forfeited = 0;
    pay(from, incinerator, lamports)
}

/// Move lamports out of an account of the program.
pub fn pay(from: &AccountView, to: &AccountView, lamports: u64) -> Result<()> {
    let mut from = *from;
    let mut to = *to;
    let left = from.lamports().checked_sub(lamports).ok_or(CoordinatorError::Overflow)?;
    from.set_lamports(left);
    let sum = to.lamports().checked_add(lamports).ok_or(CoordinatorError::Overflow)?;
    to.set_lamports(sum);
    Ok(())
}

/// Free the seat of a wallet, if it has one. Return whether it had one.
///
/// Refuse a wallet that is in the running epoch, because verdicts about it may still come, or that waits for the next.
#[inline(never)]
pub fn vacate(run: &mut Run, members: &mut Members, membership: &mut Membership) -> Result<bool> {
    let Some(index) = super::members::find(members, &membership.wallet) else { return Ok(false) };
    let seat = &members.seats[index];
    let idle = seat.state == member_state::IDLE && seat.pending != pending::WAITS;
    require!(idle, CoordinatorError::StillBound);
    settle(run, members, index, membership);
    bitmap::clear(&mut run.finishers, index as u8);
    bitmap::clear(&mut members.established, index as u8);
    let seat = &mut members.seats[index];
    *seat = bytemuck::Zeroable::zeroed();
    seat.used = 1; // used seats come first; a seat with `declared` 0 has no owner
    Ok(true)
}
