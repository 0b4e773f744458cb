//! Equivocation: one key signed two different results for one share of a round.
//!
//! The Ed25519 program checks the signatures in the instruction before. This module checks that it verified two
//! complete statements from its own data, and that they contradict each other.

use crate::constants::STATEMENT_DOMAIN;
use anchor_lang::prelude::*;

pub const ED25519: Address = anchor_lang::address!("Ed25519SigVerify111111111111111111111111111");
pub const INSTRUCTIONS: Address = anchor_lang::address!("Sysvar1nstructions1111111111111111111111111");

// Offsets in the statement that a member signs about a result. Its share comes first: domain, zero-padded run id,
// epoch, height, seed and seat. The content follows: commitment, and hash of the announcement.
const RUN: usize = STATEMENT_DOMAIN.len();
const EPOCH: usize = RUN + 32;
const SEAT: usize = EPOCH + 4 + 4 + 8;
const COMMITMENT: usize = SEAT + 1;
const ANNOUNCEMENT: usize = COMMITMENT + 32;
const STATEMENT: usize = ANNOUNCEMENT + 32;

/// Offset of the first entry in the data of an Ed25519 instruction.
const ENTRIES: usize = 2;
/// Bytes of an entry.
const ENTRY: usize = 14;
/// The instruction index that refers to the Ed25519 instruction itself.
const ITSELF: u16 = u16::MAX;

/// The member that signed twice.
pub struct Proven<'a> {
    pub key: &'a [u8],
    pub run_id: &'a [u8],
    pub epoch: u32,
    pub seat: u8,
}

/// Return the equivocation that the data of a successful Ed25519 instruction proves, or None if it proves none.
#[inline(never)]
pub fn read(data: &[u8]) -> Option<Proven<'_>> {
    let [signatures, _] = *data.first_chunk::<ENTRIES>()?;
    if signatures != 2 {
        return None;
    }
    let (key, first) = signed(data, 0)?;
    let (other_key, second) = signed(data, 1)?;
    let same_share = first[..COMMITMENT] == second[..COMMITMENT] && first[..RUN] == STATEMENT_DOMAIN;
    let differ = first[COMMITMENT..ANNOUNCEMENT] != second[COMMITMENT..ANNOUNCEMENT];
    (key == other_key && same_share && differ).then_some(Proven {
        key,
        run_id: &first[RUN..EPOCH],
        epoch: u32::from_le_bytes(*first[EPOCH..].first_chunk()?),
        seat: first[SEAT],
    })
}

/// Return the key and the statement of an entry, if both lie in the instruction itself.
fn signed(data: &[u8], index: usize) -> Option<(&[u8], &[u8])> {
    let entry = data.get(ENTRIES + ENTRY * index..)?.first_chunk::<ENTRY>()?;
    let number = |index: usize| u16::from_le_bytes([entry[2 * index], entry[2 * index + 1]]);
    let [_, signature_in, key, key_in, message, size, message_in] = core::array::from_fn(number);
    if [signature_in, key_in, message_in] != [ITSELF; 3] || usize::from(size) != STATEMENT {
        return None;
    }
    let slice = |start: u16, len: usize| data.get(usize::from(start)..usize::from(start) + len);
    Some((slice(key, 32)?, slice(message, STATEMENT)?))
}
