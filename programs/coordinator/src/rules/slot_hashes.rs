//! The sysvar that names the hashes of the last 512 slots: what the seeds of rounds are drawn from.

use anchor_lang::prelude::*;

pub const ID: Address = anchor_lang::address!("SysvarS1otHashes111111111111111111111111111");

/// Slots whose hashes are kept.
const KEPT: usize = 512;
/// The entries, newest first, stand behind their count.
const COUNT_BYTES: usize = 8;
/// An entry: a slot and its hash.
const ENTRY_BYTES: usize = 40;

/// The newest slot's hash; zeros when there is none yet.
pub fn newest(sysvar: &[u8]) -> [u8; 32] {
    hash_at(sysvar, 0)
}

/// The hash of the first slot from `slot` on that was not skipped, and None while there is none.
///
/// The entries of slots that were too long ago are gone. Then it is the first one from `slot` + 512, or + 1,024, and so
/// on, that is surely there: a wallet that alone sends instructions to a run gets another hash by waiting, but only one every
/// 512 slots, and anybody else can end that by drawing the seed in time.
#[inline(never)]
pub fn first_since(sysvar: &[u8], slot: u64) -> Option<[u8; 32]> {
    let entries = sysvar.len().saturating_sub(COUNT_BYTES) / ENTRY_BYTES;
    let count = (word(sysvar, 0) as usize).min(entries);
    let oldest = slot_at(sysvar, count.checked_sub(1)?);
    let mut wanted = slot;
    if count >= KEPT && oldest > slot {
        wanted = slot.wrapping_add((oldest - slot).div_ceil(KEPT as u64).wrapping_mul(KEPT as u64));
    }
    // the entries before `found` are of the slots from `wanted` on
    let (mut found, mut end) = (0, count);
    while found < end {
        let middle = (found + end) / 2;
        if slot_at(sysvar, middle) >= wanted {
            found = middle + 1;
        } else {
            end = middle;
        }
    }
    Some(hash_at(sysvar, found.checked_sub(1)?))
}

/// Where an entry is. Nothing is checked: a checked product would need 128-bit arithmetic, which sBPF lacks.
fn place(index: usize) -> usize {
    COUNT_BYTES + ENTRY_BYTES.wrapping_mul(index)
}

fn slot_at(sysvar: &[u8], index: usize) -> u64 {
    word(sysvar, place(index))
}

fn hash_at(sysvar: &[u8], index: usize) -> [u8; 32] {
    let start = place(index) + 8;
    let mut hash = [0; 32];
    if let Some(bytes) = sysvar.get(start..start + 32) {
        hash.copy_from_slice(bytes);
    }
    hash
}

fn word(bytes: &[u8], start: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(found) = bytes.get(start..start + 8) {
        word.copy_from_slice(found);
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
    fn it_is_the_first_slot_that_was_not_skipped() {
        let few = sysvar(&[3, 5, 9]);
        let expected = [(0, Some(3)), (3, Some(3)), (4, Some(5)), (5, Some(5)), (6, Some(9)), (9, Some(9)), (10, None)];
        for (slot, found) in expected {
            assert_eq!(first_since(&few, slot), found.map(|slot: u8| [slot; 32]));
        }
        assert_eq!(first_since(&sysvar(&[]), 1), None);
        assert_eq!(first_since(&[], 1), None);
        assert_eq!((newest(&few), newest(&[])), ([9; 32], [0; 32]));
    }

    #[test]
    fn who_comes_too_late_gets_the_next_fixed_slot() {
        let slots: Vec<u64> = (1_000..2_024).step_by(2).collect();
        let full = sysvar(&slots);
        for (slot, wanted) in [(1_000, 1_000), (999, 1_511), (600, 1_112), (488, 1_000), (487, 1_511), (1_001, 1_001)] {
            let expected = slots.iter().find(|one| **one >= wanted).unwrap();
            assert_eq!(first_since(&full, slot), Some([*expected as u8; 32]), "{slot}");
        }
    }
}
