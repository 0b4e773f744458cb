//! The errors of the program. Each message states the limit and what to do. Codes count from 6000 in this order.

use anchor_lang::prelude::*;

#[error_code]
pub enum CoordinatorError {
    // accounts
    #[msg("This account is not fully grown: call `grow` until it has its full size.")]
    NotGrown,
    #[msg("This account already has its full size: stop calling `grow`.")]
    AlreadyGrown,
    #[msg("`which` must be 0 (members) or 1 (witnesses).")]
    UnknownAccount,
    #[msg("The run id must have 1 to 32 bytes and no zero byte: choose another one.")]
    RunIdInvalid,
    #[msg("Only the run's main authority may do this: sign with that wallet.")]
    NotMainAuthority,
    #[msg("Pass the SlotHashes sysvar (SysvarS1otHashes111111111111111111111111111).")]
    WrongSlotHashes,
    // run states
    #[msg("The run is not in a state that allows this: wait for the state that the instruction belongs to.")]
    WrongState,
    #[msg("Nothing is due yet: tick again at the run's next deadline.")]
    NothingToTick,
    #[msg("The run must be paused for this: call set_paused(true) and wait until the epoch has ended.")]
    NotHalted,
    #[msg("The run is halted: wait until its owner resumes it.")]
    RunHalted,
    #[msg("All steps of the run are done: raise total_steps or rewind the run, then reopen it.")]
    StepsDone,
    #[msg("The run is halted already: resume it with set_paused(false) if it should train.")]
    AlreadyHalted,
    #[msg("The run is neither paused nor new nor about to pause: there is nothing to resume.")]
    NotPaused,
    #[msg("Set the config (update with `config`) before resuming the run.")]
    ConfigMissing,
    #[msg("Set the model (update with `model`) before resuming the run.")]
    ModelMissing,
    #[msg("Set the schema (update with `schema`) before resuming the run.")]
    SchemaMissing,
    // config
    #[msg("Set rounds_per_epoch or epoch_time (or both): at least one must be above 0.")]
    EpochLengthMissing,
    #[msg("warmup_time must be below epoch_time: shorten the warm-up or lengthen the epoch.")]
    WarmupTooLong,
    #[msg("cooldown_time must be above 0 seconds.")]
    CooldownTimeZero,
    #[msg("max_round_train_time must be above 0 seconds.")]
    RoundTrainTimeZero,
    #[msg("max_round_train_time must be below epoch_time: shorten the round or lengthen the epoch.")]
    RoundTrainTimeTooLong,
    #[msg("min_round_time must be at most max_round_train_time; 0 sets no minimum.")]
    MinRoundTimeInvalid,
    #[msg("round_witness_time must be above 0 seconds.")]
    RoundWitnessTimeZero,
    #[msg("min_clients must be above 0.")]
    MinClientsZero,
    #[msg("init_min_clients must be between min_clients and 256.")]
    InitMinClientsOutOfRange,
    #[msg("witness_nodes must be at most 32; 0 elects every member up to 32.")]
    WitnessNodesTooMany,
    #[msg("witness_nodes must be at most min_clients, so that every round can elect them.")]
    WitnessNodesAboveMinClients,
    #[msg("global_batch_size_start must be above 0 sequences.")]
    BatchSizeZero,
    #[msg("global_batch_size_end must be at least global_batch_size_start.")]
    BatchSizeShrinks,
    #[msg("global_batch_size_warmup_tokens must be at most 2^47 tokens.")]
    BatchWarmupTooLong,
    #[msg("total_steps must be above 0.")]
    TotalStepsZero,
    #[msg("verification_percent must be at most 100.")]
    VerificationPercentTooLarge,
    #[msg("waiting_for_members_extra_time must be above 0 seconds.")]
    ExtraTimeZero,
    #[msg("Every time must be at most 2592000 seconds (30 days).")]
    TimeTooLong,
    #[msg("overlap must be 0 (a round's own witnesses attest its results) or 1 (those of the next round do).")]
    OverlapInvalid,
    // model
    #[msg("name must have at most 64 bytes.")]
    NameTooLong,
    #[msg("description must have at most 280 bytes.")]
    DescriptionTooLong,
    #[msg("client_version must have at most 96 bytes.")]
    ClientVersionTooLong,
    #[msg("max_seq_len must be between 1 and 16777216 tokens.")]
    MaxSeqLenOutOfRange,
    #[msg("cold_start_warmup_steps must fit into one epoch: at most rounds_per_epoch and (epoch_time - warmup_time) / max_round_train_time.")]
    ColdStartTooLong,
    #[msg("The checkpoint's kind must be 1 (Hub), 2 (local) or 3 (dummy).")]
    UnknownCheckpoint,
    #[msg("The checkpoint's repo must not be empty.")]
    RepoMissing,
    #[msg("The checkpoint's repo must have at most 192 bytes.")]
    RepoTooLong,
    #[msg("The checkpoint's revision must have at most 64 bytes.")]
    RevisionTooLong,
    #[msg("The training spec must have 1 to 4096 bytes: shorten the data location.")]
    SpecLength,
    #[msg("The training spec was not written completely: run update-config again.")]
    SpecMismatch,
    #[msg("The run has no training spec, or its owner is writing another one: run update-config first.")]
    SpecMissing,
    #[msg("A schema needs 1 to 8 tiers and one width for each.")]
    TiersOutOfRange,
    #[msg("The widths of a schema must be above 0 and fall from tier to tier.")]
    TierWidthsInvalid,
    #[msg("The schema's hash must not be zero.")]
    SchemaHashZero,
    #[msg("step must be at least 1: the first step is 1.")]
    StepZero,
    // members
    #[msg("The authorization does not allow this wallet to join: ask the run's join authority for one.")]
    NotAuthorized,
    #[msg("The schema hash differs from the run's: build the model with the run's settings.")]
    SchemaMismatch,
    #[msg("The tier is not one of the run's: it must be below `tiers` of the model account.")]
    TierOutOfRange,
    #[msg("The client's version is not the run's client_version: install the version that the run names.")]
    ClientVersionMismatch,
    #[msg("weight must be at least 1 sequence per minute.")]
    WeightZero,
    #[msg("The peer-to-peer key must not be zero.")]
    P2pKeyZero,
    #[msg("All 256 member seats are in use: try again when an epoch ends.")]
    MembersFull,
    #[msg("This wallet is not a member of the run: join first.")]
    NotAMember,
    #[msg("This wallet is barred from the run: ask its main or join authority to lift the bar with `kick`.")]
    Barred,
    #[msg("Only the run's main or join authority may do this: sign with one of these wallets.")]
    NotAllowedToKick,
    #[msg("This wallet has no membership of this run: `enroll` first.")]
    NotEnrolled,
    #[msg("This is the membership of another wallet or run: pass the one that belongs to both.")]
    WrongMembership,
    #[msg("The run asks for a bond above what this wallet agrees to: allow more, or do not join.")]
    BondAboveLimit,
    #[msg("The bond of this wallet is below what the run asks for now: pay the rest with `enroll`.")]
    BondTooLow,
    #[msg("Another wallet holds the seat that this wallet gets: pass that wallet's membership as `evicted`.")]
    WrongEvicted,
    #[msg(
        "The wallet is in the running epoch or waits for the next one: leave, and withdraw after the epoch has ended."
    )]
    StillBound,
    #[msg("Only the owner of this membership may withdraw it. After the run is closed, the wallet that paid for a bar may remove it.")]
    NotOwnMembership,
    #[msg("The rent is returned to the wallet that paid it: pass the sponsor that the membership names.")]
    WrongSponsor,
    #[msg("Pass the incinerator's address (1nc1nerator11111111111111111111111111111111).")]
    WrongIncinerator,
    #[msg("Bonds of ejected members are not settled yet: call `settle` for each of `Members::forfeited`.")]
    BondsUnsettled,
    // rounds
    #[msg("This seat belongs to another wallet, or its member is not healthy: look up your own seat again.")]
    SeatMismatch,
    #[msg("Epoch, height and seed are not those of a round that this instruction accepts now: fetch the run and name its current round.")]
    StaleHeight,
    #[msg("This member was not elected: only elected members may attest.")]
    NotElected,
    #[msg("This member has already attested in this phase: wait for the next one.")]
    DuplicateWitness,
    #[msg("participation must be a subset of the roster of the round that is attested: this one, or with overlap the one before.")]
    BadParticipation,
    #[msg("Name only healthy members of the last attested roster whose results are missing.")]
    NotUnhealthy,
    #[msg("No case is open about this result, and only its drawn auditor may open one.")]
    NotAuditor,
    #[msg("This result was not recorded, or was not drawn for an audit.")]
    NotAudited,
    #[msg("No case is open about this result, and only a mismatch opens one.")]
    NotDisputed,
    #[msg("This member is not in the jury: the round's other established members that hold all levels of the target.")]
    NotAJuror,
    #[msg("This member has already voted on this case.")]
    DuplicateVerdict,
    #[msg("Four cases about such members are open, or this auditor already opened one: wait until one is decided or expires.")]
    CasesFull,
    #[msg("Pass the instructions sysvar (Sysvar1nstructions1111111111111111111111111).")]
    WrongInstructions,
    #[msg("The instruction before this one must verify two statements with Ed25519, in its own data: one round, one key, two commitments.")]
    NoEquivocation,
    #[msg("This member is not in the running epoch, or is ejected already.")]
    AlreadyEjected,
    // checkpoints
    #[msg("Name at least one level in the mask, and pass one hash per named level, in ascending order.")]
    HashesInvalid,
    #[msg("A checkpoint must come from the main authority, or from a tier-0 member that trained and finished the last epoch.")]
    NotAllowedToCheckpoint,
    #[msg("All levels must be attested, with the checkpoint's hashes: wait for the cooldown's attestations.")]
    CheckpointMismatch,
    #[msg("The run already has a checkpoint of a later step, or of this step from a member with an earlier turn: name one of the next epoch.")]
    CheckpointNotNewer,
    #[msg("Name a Hub repository. Members may name a directory only if a recorded checkpoint is one, or the newest is older than the last epoch.")]
    CheckpointPlaceRefused,
    #[msg("The recorded checkpoint at `index` does not have this `step`: read both from the model account (0 is the current checkpoint, 1 to 3 the earlier ones).")]
    NoSuchCheckpoint,
    // closing, inspection, arithmetic
    #[msg("The rent cannot go to an account that is being closed: name another spill account.")]
    SpillCloses,
    #[msg("`which` must be 0 (witness order), 1 (auditors), 2 (data) or 3 (witnesses), and `ring` must be below 4.")]
    UnknownInspection,
    #[msg("A counter would overflow: the run has reached the end of its number range.")]
    Overflow,
    #[msg("The transaction would break an invariant of the run, so it changed nothing: please report this.")]
    InvariantBroken,
    #[msg("The epoch number must not decrease: give the run's number, or a higher one.")]
    EpochGoesBack,
}
