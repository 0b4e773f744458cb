//! All decisions of the program. No module here depends on an instruction.

pub mod agreement;
pub mod assignment;
pub mod audits;
pub mod availability;
pub mod backlog;
pub mod batch;
pub mod bitmap;
pub mod cases;
pub mod checkpoints;
pub mod committee;
pub mod cooldown;
pub mod drops;
pub mod epoch;
pub mod equivocation;
pub mod invariant;
pub mod level_holders;
pub mod levels;
pub mod members;
pub mod membership;
pub mod moment;
pub mod provisional;
pub mod quorum;
pub mod rounds;
pub mod seeds;
pub mod sequence;
pub mod shuffle;
pub mod slot_hashes;
pub mod text;
pub mod transitions;
pub mod validate_config;
pub mod validate_model;
pub mod weights;

pub use moment::{now, Moment};
pub use transitions::Machine;
