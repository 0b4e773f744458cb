//! What passes between a wallet's seat and its membership, and where the bond goes.
//!
//! A seat is handed out again when its owner stays away; the membership stays. So whatever a seat says of its owner is
//! written down there before anybody else gets the seat, and when the owner leaves. A bond is marked as forfeited the
//! moment its owner is ejected, by a bit in `Members`, since the membership need not be at hand then; the mark is carried
//! over with the rest, and no bond comes back before.

use super::{bitmap, weights};
use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::{accounts::Account, address_eq, prelude::*};

/// Nobody has the key of it, and what it holds is destroyed: so nobody gains from an ejection, the run's owner neither.
pub const INCINERATOR: Address = anchor_lang::address!("1nc1nerator11111111111111111111111111111111");

/// Whose membership, of which run.
#[derive(Clone, Copy)]
pub struct Whose<'a> {
    pub run: &'a Address,
    pub created: u64,
    pub wallet: &'a Address,
}

impl Whose<'_> {
    /// Creates the account, at its address, with nothing in it but whose it is.
    #[inline(never)]
    pub fn create(&self, view: &AccountView, payer: &AccountView) -> Result<()> {
        let created = self.created.to_le_bytes();
        let seeds: [&[u8]; 4] = [MEMBERSHIP_SEED, self.run.as_ref(), &created, self.wallet.as_ref()];
        let (space, discriminator) = (8 + core::mem::size_of::<Membership>(), Membership::DISCRIMINATOR);
        let bump = Blank { view: *view, seeds: &seeds, space, discriminator }.create(payer)?;
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

    /// The account, if it is this membership. No other instruction of the transaction may hold it meanwhile.
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

/// Whether there is an account of the program at this address already.
pub fn exists(view: &AccountView) -> bool {
    view.owned_by(&crate::ID)
}

/// Memberships exist at their own addresses only, which the program makes sure of when it creates them; and again here.
#[inline(never)]
pub fn check_address(membership: &Membership, address: &Address) -> Result<()> {
    let (created, bump) = (membership.created.to_le_bytes(), [membership.bump]);
    let seeds: [&[u8]; 5] = [MEMBERSHIP_SEED, membership.run.as_ref(), &created, membership.wallet.as_ref(), &bump];
    anchor_lang::verify_program_address(&seeds, &crate::ID, address)?;
    Ok(())
}

/// The member may ask for a place: it is enrolled, not barred, and has paid the bond that the run asks for now.
pub fn check_bond(membership: &Membership, bond: u64) -> Result<()> {
    require!(membership.barred == 0, CoordinatorError::Barred);
    require!(membership.enrolled == 1, CoordinatorError::NotEnrolled);
    require!(membership.bond >= bond, CoordinatorError::BondTooLow);
    Ok(())
}

/// Writes down what the seat of a wallet says of it; returns whether its bond was marked as forfeited.
#[inline(never)]
pub fn settle(run: &Run, members: &mut Members, index: usize, membership: &mut Membership) -> bool {
    let seat = &members.seats[index];
    membership.points = seat.points;
    membership.slashed = seat.slashed;
    // of two attempts at an epoch it may have been in the first one alone
    let began = bitmap::has(&run.began, index as u8);
    if began && seat.weight > 0 && seat.last_epoch == members.epoch {
        let delivered = weights::delivered(members, index as u8) as u16;
        let due = members.judged as u16;
        if membership.epoch != members.epoch {
            (membership.epoch, membership.epoch_delivered, membership.epoch_due) = (members.epoch, 0, 0);
        }
        let (more, more_due) =
            (delivered.saturating_sub(membership.epoch_delivered), due.saturating_sub(membership.epoch_due));
        membership.delivered = membership.delivered.saturating_add(u32::from(more));
        membership.due = membership.due.saturating_add(u32::from(more_due));
        (membership.epoch_delivered, membership.epoch_due) = (delivered, due);
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

/// Destroys what is forfeited.
pub fn burn(membership: &mut Membership, from: &AccountView, incinerator: &AccountView) -> Result<()> {
    let lamports = membership.forfeited;
    membership.forfeited = 0;
    pay(from, incinerator, lamports)
}

/// Moves lamports out of an account of the program.
pub fn pay(from: &AccountView, to: &AccountView, lamports: u64) -> Result<()> {
    let (mut from, mut to) = (*from, *to);
    let left = from.lamports().checked_sub(lamports).ok_or(CoordinatorError::Overflow)?;
    from.set_lamports(left);
    let sum = to.lamports().checked_add(lamports).ok_or(CoordinatorError::Overflow)?;
    to.set_lamports(sum);
    Ok(())
}

/// Takes a wallet off its seat, if it has one and nothing holds it there: it is in no epoch, so that all verdicts about it
/// are given, and it wants none. Returns whether it had one.
#[inline(never)]
pub fn vacate(run: &mut Run, members: &mut Members, membership: &mut Membership) -> Result<bool> {
    let Some(index) = super::members::find(members, &membership.wallet) else { return Ok(false) };
    let seat = &members.seats[index];
    let idle = seat.state == member_state::IDLE && seat.pending != wish::WAITS;
    require!(idle, CoordinatorError::StillBound);
    settle(run, members, index, membership);
    bitmap::clear(&mut run.finishers, index as u8);
    bitmap::clear(&mut members.established, index as u8);
    let seat = &mut members.seats[index];
    *seat = bytemuck::Zeroable::zeroed();
    seat.used = 1; // used seats come first; this one is nobody's
    Ok(true)
}
