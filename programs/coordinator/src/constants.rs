//! Limits and seeds shared by accounts, rules and instructions.

/// Maximum number of members. A seat index fits a `u8`, and a set of seats a 32-byte bitmap.
pub const MAX_MEMBERS: usize = 256;
/// Maximum number of witnesses per round, and of attestations per level in a cooldown.
pub const MAX_WITNESSES: usize = 32;
/// Number of rounds whose headers the ring stores.
pub const STORED_ROUNDS: usize = 4;
/// Maximum number of levels of a model, which equals its number of tiers.
pub const MAX_LEVELS: usize = 8;
/// Bytes of the fingerprints in an attestation: ten bits for each possible member.
pub const FINGERPRINT_BYTES: usize = 320;
/// Bit planes of the vote counters: up to 63 votes for each seat.
pub const VOTE_PLANES: usize = 6;
/// Maximum number of intervals in the backlog: those of a third of 256 members, and a few more.
pub const BACKLOG: usize = 96;
/// Maximum number of backlog intervals that one round trains again.
pub const REDO: usize = 4;
/// Seconds that an epoch waits for holders of the model: newcomers for an established member, and established members
/// for a finisher. The owner may rewind the run earlier.
pub const HOLDERS_WAIT: u64 = 24 * 60 * 60;
/// Number of earlier checkpoints that a run records.
pub const EARLIER: usize = 3;
/// Maximum number of intervals of a round's batch: those that are trained again, and the fresh one.
pub const PIECES: usize = REDO + 1;
/// Maximum number of drawn results per round, and of open cases. Half are for newcomers' results.
pub const MAX_CASES: usize = 8;
/// Bit planes of the counter of delivered rounds (`Members::delivered`).
pub const COUNT_BITS: usize = 12;
/// Bit planes of the level score (`Members::shown`).
pub const SHOWN_BITS: usize = 7;
/// Maximum size of a run id, which is a PDA seed.
pub const RUN_ID_BYTES: usize = 32;

pub const NAME_BYTES: usize = 64;
pub const DESCRIPTION_BYTES: usize = 280;
pub const REPO_BYTES: usize = 192;
pub const REVISION_BYTES: usize = 64;
pub const CLIENT_VERSION_BYTES: usize = 96;
/// Maximum size of the training spec. With it, one instruction can still create the whole `Model` account.
pub const SPEC_BYTES: usize = 4_096;

/// Layout version written into every account.
pub const VERSION: u8 = 14;
/// Maximum number of bytes that an account may gain in one instruction, also when a program creates it.
pub const GROWTH: usize = 10_240;

pub const RUN_SEED: &[u8] = b"run";
pub const MODEL_SEED: &[u8] = b"model";
pub const MEMBERS_SEED: &[u8] = b"members";
pub const WITNESSES_SEED: &[u8] = b"witnesses";
pub const MEMBERSHIP_SEED: &[u8] = b"membership";

/// Scope of an authorization to join all runs of a join authority. The scope for a single run is the run's address.
pub const JOIN_SCOPE: &[u8] = b"CoordinatorJoinRun";

/// The beginning of the statement that a member signs about a result. The last byte is the kind of the statement.
pub const STATEMENT_DOMAIN: [u8; 25] = *b"aftermath announcement 3\x01";

/// A set of member seats: bit `i % 8` of byte `i / 8` stands for seat `i`.
pub type Bitmap = [u8; 32];
/// SHA-256 of a level's tensors or of the state schema; all zero means unknown.
pub type Hash = [u8; 32];
