//! What a member counts for: no more than it has shown.
//!
//! A newcomer counts at most as much as the median of those who have finished an epoch; a member that was in one, at most
//! twice what it delivered of its share there, and eight times the median: nobody checks what a member delivers, so no
//! wallet may have nearly all of the work by declaring that it is fast. Counts of 256 members are kept as bitmaps, one for each bit: adding one to
//! all who delivered costs as much as a few words, where 256 counters would cost more than closing a round may.

use super::{bitmap, level_holders, quorum};
use crate::{constants::*, state::*};

/// A share of what was due is judged in eighths.
const EIGHTHS: u32 = 8;
/// For each N members that delivered, one that owed nothing may vote as they do.
const IDLE: u32 = 4;
/// Maximum weight of a member, in medians.
const MEDIANS: u32 = 8;
pub const MOST: u32 = (1 << COUNT_BITS) - 1;

/// The members that a round counts for: those whose results a quorum of the witnesses recorded. Where the epoch began
/// without established holders, those that a majority of the elected witnesses recorded alike or, while some
/// witnesses are late, that no majority left out.
pub struct Counted {
    /// Delivered all that they owed.
    pub attested: Bitmap,
    /// Those of them who owed something.
    pub delivered: Bitmap,
}

/// Counts a round that made a step.
#[inline(never)]
pub fn count(members: &mut Members, counted: &Counted) {
    members.proven = bitmap::either(&members.proven, &counted.delivered);
    if members.judged == MOST {
        return;
    }
    members.judged += 1;
    for index in 0..bitmap::WORDS {
        let mut carry = bitmap::word(&counted.attested, index);
        for plane in members.delivered.iter_mut() {
            if carry == 0 {
                break;
            }
            let digit = bitmap::word(plane, index);
            bitmap::set_word(plane, index, digit ^ carry);
            carry &= digit;
        }
    }
}

/// Begins the counts of an epoch, and gives everybody who is in it its weight.
#[inline(never)]
pub fn begin(members: &mut Members) {
    members.judged = 0;
    members.delivered = [[0; 32]; COUNT_BITS];
    members.proven = [0; 32];
    let median = median(members);
    let highest = (u32::from(median) * MEDIANS).min(u32::from(u16::MAX)) as u16;
    for seat in members.seats.iter_mut().take_while(|seat| seat.used == 1) {
        if seat.state == member_state::HEALTHY {
            let most = if seat.weight == 0 { median } else { seat.weight.min(highest) };
            seat.weight = seat.declared.min(most).max(1);
        }
    }
}

/// The warm-up was given up, or the epoch made no step: nobody has shown anything, so who had not before is a newcomer
/// again, whatever it was given.
#[inline(never)]
pub fn forget(members: &mut Members) {
    let Members { seats, established, .. } = members;
    for (index, seat) in seats.iter_mut().take_while(|seat| seat.used == 1).enumerate() {
        match seat.state {
            member_state::IDLE => {}
            member_state::EJECTED => seat.weight = 1,
            _ if bitmap::has(established, index as u8) => {}
            _ => seat.weight = 0,
        }
    }
}

/// The lower median of what those count for who have been in an epoch; of what all declare, if nobody has.
fn median(members: &Members) -> u16 {
    let healthy =
        || members.seats.iter().take_while(|seat| seat.used == 1).filter(|seat| seat.state == member_state::HEALTHY);
    let known = healthy().any(|seat| seat.weight > 0);
    let weights: alloc::vec::Vec<u16> = if known {
        healthy().filter(|seat| seat.weight > 0).map(|seat| seat.declared.min(seat.weight)).collect()
    } else {
        healthy().map(|seat| seat.declared).collect()
    };
    lower_median(&weights)
}

/// Found byte by byte: sorting 256 numbers would cost several times as much.
fn lower_median(weights: &[u16]) -> u16 {
    let mut place = weights.len().saturating_sub(1) as u32 / 2;
    let high = nth(weights.iter().map(|weight| (weight >> 8) as u8), &mut place);
    let same = weights.iter().filter(|weight| (*weight >> 8) as u8 == high);
    let low = nth(same.map(|weight| *weight as u8), &mut place);
    u16::from(high) << 8 | u16::from(low)
}

/// The byte at `place` of the sorted bytes; `place` is then counted from the first of its equals.
fn nth(bytes: impl Iterator<Item = u8>, place: &mut u32) -> u8 {
    let mut counts = alloc::vec![0u32; 256];
    for byte in bytes {
        counts[byte as usize] += 1;
    }
    for (byte, count) in counts.iter().enumerate() {
        if *place < *count {
            return byte as u8;
        }
        *place -= count;
    }
    0
}

/// At the end of an epoch: the most that each of its members may count for in the next.
#[inline(never)]
pub fn end(members: &mut Members) {
    if members.judged == 0 {
        return forget(members);
    }
    for index in 0..bitmap::WORDS {
        let digits = eighths(members, index);
        for (byte, seats) in members.seats[64 * index..64 * (index + 1)].chunks_exact_mut(8).enumerate() {
            let [one, two, four, eight] = digits.map(|digit| spread(digit >> (8 * byte)));
            let mut shown = one | two << 1 | four << 2 | eight << 3; // a byte for each of the eight seats
            for seat in seats {
                if seat.used == 0 {
                    return;
                }
                let eighths = shown & 0xff;
                shown >>= 8;
                seat.weight = match seat.state {
                    member_state::IDLE => continue,
                    // it did not begin, but one share was planned for it: so a member that does this often fades away
                    member_state::LEFT_EARLY => (seat.weight / 2).max(1),
                    member_state::EJECTED => 1,
                    // in 64 bits: the VM has no others, and would cut every smaller number off by itself
                    _ => {
                        (u64::from(seat.weight) * 2 * eighths / u64::from(EIGHTHS)).clamp(1, u64::from(u16::MAX)) as u16
                    }
                };
            }
        }
    }
}

/// The lowest eight bits as bytes of 0 or 1.
#[inline(always)]
fn spread(bits: u64) -> u64 {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    let own = (bits & 0xff).wrapping_mul(EACH) & u64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]);
    own.wrapping_add(0x7f * EACH) >> 7 & EACH
}

/// How many eighths of the epoch's rounds each of 64 seats delivered in, by its binary digits: a look at eight sets for
/// each of 256 seats would cost several times as much.
#[inline(never)]
fn eighths(members: &Members, index: usize) -> [u64; 4] {
    let counts = members.delivered.each_ref().map(|plane| bitmap::word(plane, index));
    let mut digits = [0; 4];
    for part in 1..=EIGHTHS {
        let least = (members.judged * part).div_ceil(EIGHTHS);
        let mut carry = quorum::at_least(&counts, least);
        for digit in digits.iter_mut() {
            (*digit, carry) = (*digit ^ carry, *digit & carry);
        }
    }
    digits
}

/// In how many of the epoch's rounds a seat delivered all that it owed.
pub fn delivered(members: &Members, seat: u8) -> u32 {
    let bits = members.delivered.iter().enumerate();
    bits.fold(0, |count, (bit, plane)| count | u32::from(bitmap::has(plane, seat)) << bit)
}

/// The seats that delivered in at least half of the epoch's rounds so far, and every level of their tier in half of those
/// in which that was judged.
pub fn half_delivered(members: &Members) -> Bitmap {
    bitmap::both(&at_least(&members.delivered, members.judged.div_ceil(2)), level_holders::in_half(members))
}

/// At the end of the rounds: whose word counts about what the epoch has made of the model are those who delivered in at
/// least half of the rounds that they were in, every level of their tier. That they owed nothing in any is held against
/// newcomers alone: shares are few where members are many, and one of great weight leaves the others none. A member that is
/// gone by now is still one of them: see `members::exit`.
#[inline(never)]
pub fn settle(members: &mut Members) {
    if members.judged == 0 {
        return;
    }
    let gone = bitmap::without(&members.proven, &members.healthy);
    let half = half_delivered(members);
    let delivered = bitmap::both(&members.proven, &half);
    // A judge that is still there needs no quorum's word: one of the last two could refuse it to the other.
    let judges = bitmap::both(&bitmap::both(&members.judges, &members.healthy), level_holders::in_half(members));
    members.proven = bitmap::either(&gone, &bitmap::either(&delivered, &judges));
    if bitmap::is_empty(&members.judges) {
        admit_idle(members, &bitmap::both(&members.healthy, &half));
    }
}

/// Nobody had shown anything before the epoch: those who owed nothing in it would be newcomers in the next, and who comes
/// then the equal of a level's only holder. So those of the smallest tiers have a word too, up to the first of which
/// anybody delivered, if they are at most a quarter of all who did: else idle wallets would stop a run.
fn admit_idle(members: &mut Members, stayed: &Bitmap) {
    let most = bitmap::count(&members.proven) / IDLE;
    let mut idle = [0; 32];
    for of_tier in &level_holders::by_tier(members) {
        let delivered = bitmap::intersects(of_tier, &members.proven);
        idle = bitmap::either(&idle, &bitmap::without(&bitmap::both(of_tier, stayed), &members.proven));
        if bitmap::count(&idle) > most {
            return;
        }
        if delivered {
            break;
        }
    }
    members.proven = bitmap::either(&members.proven, &idle);
}

/// The seats whose count is at least `least`: compares from the lowest bit up.
pub(super) fn at_least(planes: &[Bitmap], least: u32) -> Bitmap {
    let mut result = [0xff; 32];
    for (bit, plane) in planes.iter().enumerate() {
        result = if least >> bit & 1 == 1 { bitmap::both(plane, &result) } else { bitmap::either(plane, &result) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_one_of_the_sorted_numbers() {
        let mut state = 1u32;
        for len in 1..200usize {
            let mut weights: alloc::vec::Vec<u16> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) as u16 >> (state % 16)
                })
                .collect();
            let found = lower_median(&weights);
            weights.sort_unstable();
            assert_eq!(found, weights[(len - 1) / 2]);
        }
    }

    #[test]
    fn every_bit_has_a_byte() {
        for bits in 0..=u8::MAX {
            let expected = core::array::from_fn(|place| bits >> place & 1);
            assert_eq!(spread(u64::from(bits) | 0x500).to_le_bytes(), expected);
        }
    }

    #[test]
    fn counts_are_those_of_counters() {
        let mut members: Members = bytemuck::Zeroable::zeroed();
        let mut counters = [0u32; MAX_MEMBERS];
        for round in 0..300u32 {
            let mut attested = [0; 32];
            for seat in 0..=255u8 {
                if (u32::from(seat) * 31 + round * 17) % 256 <= u32::from(seat) {
                    bitmap::set(&mut attested, seat);
                    counters[seat as usize] += 1;
                }
            }
            count(&mut members, &Counted { attested, delivered: attested });
        }
        assert_eq!(members.judged, 300);
        for least in [1, 2, 100, 255, 256, 257, 300] {
            let found = at_least(&members.delivered, least);
            for seat in 0..=255u8 {
                assert_eq!(bitmap::has(&found, seat), counters[seat as usize] >= least);
                assert_eq!(delivered(&members, seat), counters[seat as usize]);
            }
        }
    }
}
