//! One instruction per file: its accounts, its checks, its effect.

pub mod close;
pub mod create;
pub mod grantee_update;
pub mod grantor_update;

pub use close::*;
pub use create::*;
pub use grantee_update::*;
pub use grantor_update::*;
