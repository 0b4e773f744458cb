//! Read the SlotHashes sysvar: the hashes of the last 512 slots, from which the seeds of rounds are drawn.

use anchor_lang::prelude::*;

pub const ID: Address = anchor_lang::address!("SysvarS1otHashes111111111111111111111111111");

/// Maximum number of entries.
const MAX_ENTRIES: usize = 512;
/// Bytes of the count before the entries, which stand newest first.
const COUNT_BYTES: usize = 8;
/// Bytes of an entry: a slot and its hash.
const ENTRY_BYTES: usize = 40;

/// Return the newest slot's hash, or zeros if there is none yet.
pub fn newest(sysvar: &[u8]) -> [u8; 32] {
    hash_at(sysvar, 0)
}

/// Return the hash of the first unskipped slot at or after `slot`, or None if there is none yet.
///
/// If the sysvar no longer has entries that old, search from `slot` + 512, + 1,024 and so on, the first that it covers.
/// So a wallet that waits to draw gets another hash only every 512 slots, and any other wallet can prevent that by
/// drawing first.
#[inline(never)]
pub fn first_since(sysvar: &[u8], slot: u64) -> Option<[u8; 32]> {
    let entries = sysvar.len().saturating_sub(COUNT_BYTES) / ENTRY_BYTES;
    let count = (word(sysvar, 0) as usize).min(entries);
    let oldest = slot_at(sysvar, count.checked_sub(1)?);
    let mut first_slot = slot;
    if count >= MAX_ENTRIES && oldest > slot {
        let periods = (oldest - slot).div_ceil(MAX_ENTRIES as u64);
        first_slot = slot.wrapping_add(periods.wrapping_mul(MAX_ENTRIES as u64));
    }
    // Binary search: the entries before `start` have slots of at least `first_slot`, those from `end` on have lower
    // ones.
    let mut start = 0;
    let mut end = count;
    while start < end {
        let middle = (start + end) / 2;
        if slot_at(sysvar, middle) >= first_slot {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    Some(hash_at(sysvar, start.checked_sub(1)?))
}

/// Return the offset of an entry. Unchecked, because a checked product needs 128-bit arithmetic, which sBPF lacks.
fn offset(index: usize) -> usize {
    COUNT_BYTES + ENTRY_BYTES.wrapping_mul(index)
}

fn slot_at(sysvar: &[u8], index: usize) -> u64 {
    word(sysvar, offset(index))
}

fn hash_at(sysvar: &[u8], index: usize) -> [u8; 32] {
    let start = offset(index) + 8;
    let mut hash = [0; 32];
    if let Some(bytes) = sysvar.get(start..start + 32) {
        hash.copy_from_slice(bytes);
    }
    hash
}

fn word(bytes: &[u8], start: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(slice) = bytes.get(start..start + 8) {
        word.copy_from_slice(slice);
    }
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn sysvar(slots: &[u64]) -> Vec<u8> {
        let mut bytes = (slots.len() as u64).to_le_bytes().to_vec();
        for slot in slots.iter().rev() {
            bytes.extend(slot.to_le_bytes());
            bytes.extend([*slot as u8; 32]);
        }
        bytes
    }

    #[test]
    fn first_since_skips_missing_slots() {
        let few = sysvar(&[3, 5, 9]);
        let expected = [(0, Some(3)), (3, Some(3)), (4, Some(5)), (5, Some(5)), (6, Some(9)), (9, Some(9)), (10, None)];
        for (slot, chosen) in expected {
            assert_eq!(first_since(&few, slot), chosen.map(|slot: u8| [slot; 32]));
        }
        assert_eq!(first_since(&sysvar(&[]), 1), None);
        assert_eq!(first_since(&[], 1), None);
        assert_eq!((newest(&few), newest(&[])), ([9; 32], [0; 32]));
    }

    #[test]
    fn first_since_old_slot_moves_by_whole_periods() {
        let slots: Vec<u64> = (1_000..2_024).step_by(2).collect();
        let full = sysvar(&slots);
        for (slot, first_slot) in
            [(1_000, 1_000), (999, 1_511), (600, 1_112), (488, 1_000), (487, 1_511), (1_001, 1_001)]
        {
            let expected = slots.iter().find(|one| **one >= first_slot).unwrap();
            assert_eq!(first_since(&full, slot), Some([*expected as u8; 32]), "{slot}");
        }
    }
}
