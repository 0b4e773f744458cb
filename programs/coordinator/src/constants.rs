//! Limits and seeds shared by accounts, rules and instructions.

/// Member seats; a seat index fits a `u8` and a set of seats fits a 32-byte bitmap.
pub const MAX_MEMBERS: usize = 256;
/// Witnesses elected and stored per round, and cooldown attestations stored per epoch.
pub const MAX_WITNESSES: usize = 32;
/// Rounds kept in the ring of headers.
pub const STORED_ROUNDS: usize = 4;
/// Levels of the model's state, equal to the number of tiers at most.
pub const MAX_LEVELS: usize = 8;
/// Field of commitment fingerprints in an attestation: ten bits for each possible member.
pub const FINGERPRINT_BYTES: usize = 320;
/// Bit planes of a counter of up to 63 votes for each seat.
pub const VOTE_PLANES: usize = 6;
/// Intervals of untrained sequences that wait to be assigned again: those of a third of 256 members, and some.
pub const BACKLOG: usize = 96;
/// Intervals of sequences that one round does again, at most.
pub const REDO: usize = 4;
/// Seconds for which an epoch waits for those who hold the model: newcomers for an established member, and established
/// members for a finisher. The owner may rewind the run before.
pub const HOLDERS_WAIT: u64 = 24 * 60 * 60;
/// Checkpoints kept besides the present one.
pub const EARLIER: usize = 3;
/// Verdicts stored per round.
pub const MAX_VERDICTS: usize = 32;
/// Bits of a count of rounds.
pub const COUNT_BITS: usize = 12;
/// Bits of how far ahead complete deliveries are.
pub const SHOWN_BITS: usize = 7;
/// A run id is a PDA seed.
pub const RUN_ID_BYTES: usize = 32;

pub const NAME_BYTES: usize = 64;
pub const DESCRIPTION_BYTES: usize = 280;
pub const REPO_BYTES: usize = 192;
pub const REVISION_BYTES: usize = 64;
pub const CLIENT_VERSION_BYTES: usize = 96;
/// Maximum size of the training spec. Model stays below what one instruction may create.
pub const SPEC_BYTES: usize = 4_096;

/// Layout version written into every account.
pub const VERSION: u8 = 12;
/// Most bytes an account may gain in one instruction, and the most a program may create by itself.
pub const GROWTH: usize = 10_240;

pub const RUN_SEED: &[u8] = b"run";
pub const MODEL_SEED: &[u8] = b"model";
pub const MEMBERS_SEED: &[u8] = b"members";
pub const WITNESSES_SEED: &[u8] = b"witnesses";
pub const MEMBERSHIP_SEED: &[u8] = b"membership";

/// Scope of an authorization to join all runs of a join authority. One for a single run has that run's address as scope.
pub const JOIN_SCOPE: &[u8] = b"CoordinatorJoinRun";

/// What a member's signature under a result begins with; the last byte says that it is one.
pub const STATEMENT_DOMAIN: [u8; 25] = *b"aftermath announcement 3\x01";

/// A set of member seats: bit `i % 8` of byte `i / 8` stands for seat `i`.
pub type Bitmap = [u8; 32];
/// SHA-256 of a level's tensors or of the state schema; all zero means unknown.
pub type Hash = [u8; 32];
