//! One file per instruction, with its accounts, checks and effects.

pub mod close;
pub mod create;
pub mod grantee_update;
pub mod grantor_update;

pub use close::*;
pub use create::*;
pub use grantee_update::*;
pub use grantor_update::*;
