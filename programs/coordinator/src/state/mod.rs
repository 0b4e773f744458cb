//! The four accounts of a run, the membership of each wallet, and parameters that the rules read.
//!
//! All are plain old data: `repr(C)` with explicit padding only, little-endian integers and byte arrays.

pub mod blank;
pub mod config;
pub mod grown;
pub mod members;
pub mod membership;
pub mod model;
pub mod run;
pub mod witnesses;

pub use blank::*;
pub use config::*;
pub use grown::*;
pub use members::*;
pub use membership::*;
pub use model::*;
pub use run::*;
pub use witnesses::*;
