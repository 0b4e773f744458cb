//! Two different results that one key signed for one share of a round.
//!
//! The signatures are checked by the Ed25519 program, in an instruction of its own right before; here it is checked that
//! it was these two statements that it checked, all of them within that instruction, and that they contradict each other.

use crate::constants::STATEMENT_DOMAIN;
use anchor_lang::prelude::*;

pub const ED25519: Address = anchor_lang::address!("Ed25519SigVerify111111111111111111111111111");
pub const INSTRUCTIONS: Address = anchor_lang::address!("Sysvar1nstructions1111111111111111111111111");

/// What a member signs of a result: the domain, the run's id padded with zeros, epoch, height, seed and seat, which are
/// the place; then the commitment, and the hash of the announcement, which are what it says about it.
const RUN: usize = STATEMENT_DOMAIN.len();
const EPOCH: usize = RUN + 32;
const SEAT: usize = EPOCH + 4 + 4 + 8;
const COMMITMENT: usize = SEAT + 1;
const ANNOUNCEMENT: usize = COMMITMENT + 32;
const STATEMENT: usize = ANNOUNCEMENT + 32;

/// Bytes of the Ed25519 instruction before the first entry, and of an entry.
const ENTRIES: usize = 2;
const ENTRY: usize = 14;
/// Stands for the instruction itself where an entry says in which one something lies.
const ITSELF: u16 = u16::MAX;

/// Who signed twice.
pub struct Proven<'a> {
    pub key: &'a [u8],
    pub run_id: &'a [u8],
    pub epoch: u32,
    pub seat: u8,
}

/// What the data of an Ed25519 instruction that succeeded proves; None if that is no equivocation.
#[inline(never)]
pub fn read(data: &[u8]) -> Option<Proven<'_>> {
    let [two, _] = *data.first_chunk::<ENTRIES>()?;
    if two != 2 {
        return None;
    }
    let ((key, first), (other, second)) = (signed(data, 0)?, signed(data, 1)?);
    let same = key == other && first[..COMMITMENT] == second[..COMMITMENT] && first[..RUN] == STATEMENT_DOMAIN;
    let differ = first[COMMITMENT..ANNOUNCEMENT] != second[COMMITMENT..ANNOUNCEMENT];
    (same && differ).then_some(Proven {
        key,
        run_id: &first[RUN..EPOCH],
        epoch: u32::from_le_bytes(*first[EPOCH..].first_chunk()?),
        seat: first[SEAT],
    })
}

/// The key and the statement of an entry, if both lie in the instruction itself.
fn signed(data: &[u8], index: usize) -> Option<(&[u8], &[u8])> {
    let entry = data.get(ENTRIES + ENTRY * index..)?.first_chunk::<ENTRY>()?;
    let number = |place: usize| u16::from_le_bytes([entry[2 * place], entry[2 * place + 1]]);
    let [_, in_1, key, in_2, message, size, in_3] = core::array::from_fn(number);
    if [in_1, in_2, in_3] != [ITSELF; 3] || usize::from(size) != STATEMENT {
        return None;
    }
    let part = |start: u16, len: usize| data.get(usize::from(start)..usize::from(start) + len);
    Some((part(key, 32)?, part(message, STATEMENT)?))
}
