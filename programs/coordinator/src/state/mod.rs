//! The four accounts of a run. All are plain old data: `repr(C)` without padding, little-endian, integers only.

pub mod config;
pub mod grown;
pub mod members;
pub mod model;
pub mod run;
pub mod witnesses;

pub use config::*;
pub use grown::*;
pub use members::*;
pub use model::*;
pub use run::*;
pub use witnesses::*;
