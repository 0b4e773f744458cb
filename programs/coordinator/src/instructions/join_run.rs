//! A wallet asks for a seat in the next epoch.

use crate::{
    constants::*,
    errors::CoordinatorError,
    rules::{
        bitmap, committee, levels, members, members::JoinContext, membership, membership::MembershipId,
        moment::elapsed, sequence, slot_hashes, text, Machine, Moment,
    },
    state::*,
};
use anchor_lang::prelude::*;
use authorization::Authorization;

#[derive(Accounts)]
pub struct JoinRun {
    pub user: Signer,
    #[account(mut, address = run.address_of(RUN_SEED, 0) @ ErrorCode::ConstraintSeeds)]
    pub run: Account<Run>,
    #[account(address = run.address_of(MODEL_SEED, 1) @ ErrorCode::ConstraintSeeds)]
    pub model: Account<Model>,
    #[account(mut, address = run.address_of(MEMBERS_SEED, 2) @ ErrorCode::ConstraintSeeds)]
    pub members: Grown<Members>,
    #[account(mut, address = run.address_of(WITNESSES_SEED, 3) @ ErrorCode::ConstraintSeeds)]
    pub witnesses: Grown<Witnesses>,
    #[account(address = slot_hashes::ID @ CoordinatorError::WrongSlotHashes)]
    pub slot_hashes: UncheckedAccount,
    /// The join authority's authorization of this wallet, of a grantee that delegated to it, or of everyone. It covers
    /// this run or all runs.
    pub authorization: BorshAccount<Authorization>,
    /// The user's membership. It may also be passed as `evicted`, and is then loaded only once.
    #[account(mut, unsafe(dup))]
    pub membership: UncheckedAccount,
    /// The membership of the wallet whose seat this one takes, or the user's own membership if it evicts nobody.
    #[account(mut, unsafe(dup))]
    pub evicted: UncheckedAccount,
}

pub fn join_run(ctx: &mut Context<JoinRun>, params: &JoinParams) -> Result<()> {
    let accounts = &mut ctx.accounts;
    let user = *accounts.user.address();
    let this_run = *accounts.run.address();
    let run: &mut Run = &mut accounts.run;
    let authorization = &accounts.authorization;
    let allowed = [JOIN_SCOPE, this_run.as_ref()]
        .iter()
        .any(|scope| authorization.is_valid_for(&run.join_authority, &user, scope));
    require!(allowed, CoordinatorError::NotAuthorized);
    require!(!run.halted(), CoordinatorError::RunHalted);
    check(&accounts.model, params)?;
    let moment = Moment::read(&accounts.slot_hashes)?;
    let id = MembershipId { run: &this_run, created: run.created, wallet: &user };
    let mut own = id.open(accounts.membership.account())?;
    let mut evicted = open_evicted(&accounts.evicted, &own)?;
    let unsaved = levels::unsaved(run, &accounts.model) != 0;
    let mut context = JoinContext { own: &mut own, evicted: evicted.as_deref_mut(), unsaved };
    let awaited_others = awaits_others(run, &accounts.members);
    let added = members::join(run, &mut accounts.members, &mut context, params, &moment)?;
    if params.stateless {
        committee::reelect(run, &accounts.members);
    }
    if added && run.state == run_state::WAITING_FOR_MEMBERS {
        let waiting = bitmap::count(&members::pending(&accounts.members));
        if waiting == u32::from(run.config.init_min_clients) {
            run.enter(run_state::WAITING_FOR_MEMBERS, moment.now);
        } else if awaited_others && !awaits_others(run, &accounts.members) {
            // The time for latecomers starts again: after an outage all members come back, but not in the same second.
            // After the first day it does so once a day. Otherwise, one member that leaves and joins again could stop the
            // run.
            let day_is_over = elapsed(moment.now, run.waiting_since, HOLDERS_WAIT);
            if !day_is_over || elapsed(moment.now, run.state_started_at, HOLDERS_WAIT) {
                run.state_started_at = moment.now;
            }
        }
    }
    sequence::bump(&mut run.members_seq);
    let mut machine =
        Machine { run, model: &accounts.model, members: &mut accounts.members, witnesses: &mut accounts.witnesses };
    machine.follow(&moment)?;
    sequence::seal(&mut accounts.run, &accounts.members, &accounts.witnesses)
}

/// Return whether the run waits for absent established members.
fn awaits_others(run: &Run, members: &Members) -> bool {
    !bitmap::is_empty(&members::expected(run, members, &members::pending(members)))
}

/// Return the evicted wallet's membership of the same run, or None if the account is `own` again.
fn open_evicted(evicted: &UncheckedAccount, own: &Account<Membership>) -> Result<Option<Account<Membership>>> {
    if evicted.address() == own.address() {
        return Ok(None);
    }
    require!(evicted.account().owned_by(&crate::ID), CoordinatorError::WrongEvicted);
    // SAFETY: the account differs from `own` and is loaded once.
    let other = unsafe { Account::<Membership>::load_mut(*evicted.account())? };
    let same = other.run == own.run && other.created == own.created;
    require!(same, CoordinatorError::WrongEvicted);
    membership::check_address(&other, evicted.address())?;
    Ok(Some(other))
}

fn check(model: &Model, params: &JoinParams) -> Result<()> {
    require!(params.schema_hash == model.schema_hash, CoordinatorError::SchemaMismatch);
    require!(params.tier < model.tiers, CoordinatorError::TierOutOfRange);
    let version = text::read(&model.client_version);
    let same = version.is_empty() || version == params.client_version.as_bytes();
    require!(same, CoordinatorError::ClientVersionMismatch);
    require!(params.weight >= 1, CoordinatorError::WeightZero);
    require!(params.p2p != [0; 32], CoordinatorError::P2pKeyZero);
    Ok(())
}
