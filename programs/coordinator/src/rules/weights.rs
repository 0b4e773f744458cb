//! The weight of a member, which decides its share of the work: at most what it has shown.
//!
//! A newcomer's weight is at most the median of established members. Any other member's weight is at most twice its
//! last weight times the fraction that it delivered. It is also at most eight times the median. Few results are
//! audited, or none, so a declared speed must not win most of the work.

use super::{bitmap, committee, level_holders, quorum};
use crate::{constants::*, state::*};
use alloc::vec::Vec;

/// The delivered fraction of an epoch's rounds is rounded down to eighths.
const EIGHTHS: u32 = 8;
/// Number of members that delivered for each member that owed nothing and may still attest levels.
const DELIVERING_PER_IDLE: u32 = 4;
/// Maximum weight of a member, in medians.
const MAX_MEDIANS: u32 = 8;
/// Maximum number of counted rounds per epoch.
pub const MAX_JUDGED: u32 = (1 << COUNT_BITS) - 1;

/// The members that a round counts for: those whose results a quorum of the witnesses recorded.
///
/// If the round was witnessed by newcomers too: those that a majority of the elected witnesses recorded alike or, while
/// some witnesses are late, those that no majority left out.
pub struct Counted {
    /// Members that delivered all that they owed.
    pub attested: Bitmap,
    /// The attested members that owed something.
    pub delivered: Bitmap,
}

/// Count a round that made a step. The counters are bit planes: adding one for all members costs a few words, and 256
/// single counters would cost more than closing a round may.
#[inline(never)]
pub fn count(members: &mut Members, counted: &Counted) {
    members.proven = bitmap::either(&members.proven, &counted.delivered);
    if members.judged == MAX_JUDGED {
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

/// Reset the counts for a new epoch, and set the weights of its members.
#[inline(never)]
pub fn begin(members: &mut Members) {
    members.judged = 0;
    members.delivered = [[0; 32]; COUNT_BITS];
    members.proven = [0; 32];
    let median = median(members);
    let highest = (u32::from(median) * MAX_MEDIANS).min(u32::from(u16::MAX)) as u16;
    for seat in members.seats.iter_mut().take_while(|seat| seat.used == 1) {
        if seat.state == member_state::HEALTHY {
            let max_weight = if seat.weight == 0 { median } else { seat.weight.min(highest) };
            seat.weight = seat.declared.min(max_weight).max(1);
        }
    }
}

/// Make newcomers again of all members of the epoch that were not established before. Called if the warm-up was
/// abandoned or the epoch made no step, so that nobody has shown anything.
#[inline(never)]
pub fn reset_newcomers(members: &mut Members) {
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

/// Return the lower median of the weights of three or more established members. With fewer than three, return the
/// larger of two medians: the established members' and the experienced members'. If no member is experienced, use the
/// median of all declared weights instead of the second. Neither one established member nor any number of wallets that
/// deliver nothing, which become experienced with a weight of 1, can lower it alone.
fn median(members: &Members) -> u16 {
    let mut declared = Vec::new();
    let mut experienced = Vec::new();
    let mut established = Vec::new();
    for (index, seat) in members.seats.iter().take_while(|seat| seat.used == 1).enumerate() {
        if seat.state != member_state::HEALTHY {
            continue;
        }
        declared.push(seat.declared);
        if seat.weight > 0 {
            experienced.push(seat.declared.min(seat.weight));
            if bitmap::has(&members.established, index as u8) {
                established.push(seat.declared.min(seat.weight));
            }
        }
    }
    if experienced.is_empty() {
        experienced = declared;
    }
    let of_established = lower_median(&established);
    if established.len() >= committee::MIN_ESTABLISHED as usize {
        return of_established;
    }
    lower_median(&experienced).max(of_established)
}

/// Return the lower median, found byte by byte: sorting 256 numbers would cost several times as much.
#[inline(never)]
fn lower_median(weights: &[u16]) -> u16 {
    let mut index = weights.len().saturating_sub(1) as u32 / 2;
    let high = nth(weights.iter().map(|weight| (weight >> 8) as u8), &mut index);
    let with_high = weights.iter().filter(|weight| (*weight >> 8) as u8 == high);
    let low = nth(with_high.map(|weight| *weight as u8), &mut index);
    u16::from(high) << 8 | u16::from(low)
}

/// Return the byte at `index` of the sorted bytes, and make `index` relative to the first byte of that value.
fn nth(bytes: impl Iterator<Item = u8>, index: &mut u32) -> u8 {
    let mut counts = alloc::vec![0u32; 256];
    for byte in bytes {
        counts[byte as usize] += 1;
    }
    for (byte, count) in counts.iter().enumerate() {
        if *index < *count {
            return byte as u8;
        }
        *index -= count;
    }
    0
}

/// Set, at the end of an epoch, the highest weight that each of its members may have in the next.
#[inline(never)]
pub fn end(members: &mut Members) {
    if members.judged == 0 {
        return reset_newcomers(members);
    }
    for index in 0..bitmap::WORDS {
        let digits = eighths(members, index);
        for (byte, seats) in members.seats[64 * index..64 * (index + 1)].chunks_exact_mut(8).enumerate() {
            let [one, two, four, eight] = digits.map(|digit| spread(digit >> (8 * byte)));
            let mut packed = one | two << 1 | four << 2 | eight << 3; // a byte for each of the eight seats
            for seat in seats {
                if seat.used == 0 {
                    return;
                }
                let eighths = packed & 0xff;
                packed >>= 8;
                seat.weight = match seat.state {
                    member_state::IDLE => continue,
                    // It left one share undone. Halving its weight makes a member that does this often lose its share.
                    member_state::LEFT_EARLY => (seat.weight / 2).max(1),
                    member_state::EJECTED => 1,
                    // In 64 bits: the VM has only 64-bit registers, so smaller types cost extra instructions.
                    _ => {
                        (u64::from(seat.weight) * 2 * eighths / u64::from(EIGHTHS)).clamp(1, u64::from(u16::MAX)) as u16
                    }
                };
            }
        }
    }
}

/// Return the lowest eight bits as eight bytes of 0 or 1.
#[inline(always)]
fn spread(bits: u64) -> u64 {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    let one_bit_per_byte = (bits & 0xff).wrapping_mul(EACH) & u64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]);
    one_bit_per_byte.wrapping_add(0x7f * EACH) >> 7 & EACH
}

/// Return in how many eighths of the epoch's rounds each of 64 seats delivered, as four bit planes. Testing each of 256
/// seats on eight bitmaps would cost several times as much.
#[inline(never)]
fn eighths(members: &Members, index: usize) -> [u64; 4] {
    let counts = members.delivered.each_ref().map(|plane| bitmap::word(plane, index));
    let mut digits = [0; 4];
    for eighth in 1..=EIGHTHS {
        let threshold = (members.judged * eighth).div_ceil(EIGHTHS);
        let mut carry = quorum::at_least(&counts, threshold);
        for digit in digits.iter_mut() {
            let old = *digit;
            *digit = old ^ carry;
            carry &= old;
        }
    }
    digits
}

/// Return in how many of the epoch's rounds a seat delivered all that it owed.
pub fn delivered(members: &Members, seat: u8) -> u32 {
    let bits = members.delivered.iter().enumerate();
    bits.fold(0, |count, (bit, plane)| count | u32::from(bitmap::has(plane, seat)) << bit)
}

/// Return the seats that delivered in at least half of the epoch's rounds so far, and have a score of at least
/// `BALANCED` (`level_holders::in_half`).
pub fn half_delivered(members: &Members) -> Bitmap {
    bitmap::both(&at_least(&members.delivered, members.judged.div_ceil(2)), level_holders::in_half(members))
}

/// Fix, when the rounds are over, which members attest the levels (`Members::proven`): those that delivered in at least
/// half of the rounds, every level of their tier.
///
/// Judges that are still there need not have owed anything: shares are few where members are many. Members that have
/// gone were checked in `members::exit`. Ejected members attest nothing.
#[inline(never)]
pub fn fix_attesters(members: &mut Members) {
    if members.judged == 0 {
        return;
    }
    for index in bitmap::seats(&bitmap::without(&members.proven, &members.healthy)) {
        // A round that closed after the ejection may have counted an earlier result.
        if members.seats[index].state == member_state::EJECTED {
            bitmap::clear(&mut members.proven, index as u8);
        }
    }
    let gone = bitmap::without(&members.proven, &members.healthy);
    let half = half_delivered(members);
    let delivered = bitmap::both(&members.proven, &half);
    // A judge that is still there needs no quorum, because one of the last two could deny it to the other.
    let judges = bitmap::both(&bitmap::both(&members.judges, &members.healthy), level_holders::in_half(members));
    members.proven = bitmap::either(&gone, &bitmap::either(&delivered, &judges));
    if bitmap::is_empty(&members.judges) {
        admit_idle(members, &bitmap::both(&members.healthy, &half));
    }
}

/// Let members that owed nothing attest levels after an epoch without established members. Otherwise these members
/// would stay newcomers, and in the next epoch a stranger would have the same vote as a level's only holder.
///
/// It admits idle members whose tier number is at most the smallest one among the members that delivered. If the idle
/// members are more than a quarter of those that delivered, it admits none of them. Otherwise idle wallets could stop
/// the run.
fn admit_idle(members: &mut Members, stayed: &Bitmap) {
    let max_idle = bitmap::count(&members.proven) / DELIVERING_PER_IDLE;
    let mut idle = [0; 32];
    for of_tier in &level_holders::by_tier(members) {
        let delivered = bitmap::intersects(of_tier, &members.proven);
        idle = bitmap::either(&idle, &bitmap::without(&bitmap::both(of_tier, stayed), &members.proven));
        if bitmap::count(&idle) > max_idle {
            return;
        }
        if delivered {
            break;
        }
    }
    members.proven = bitmap::either(&members.proven, &idle);
}

/// Return the seats whose count is at least `threshold`, comparing from the lowest bit up.
pub(super) fn at_least(planes: &[Bitmap], threshold: u32) -> Bitmap {
    let mut result = [0xff; 32];
    for (bit, plane) in planes.iter().enumerate() {
        result = if threshold >> bit & 1 == 1 { bitmap::both(plane, &result) } else { bitmap::either(plane, &result) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_median_equals_sorting() {
        let mut state = 1u32;
        for len in 1..200usize {
            let mut weights: Vec<u16> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16) as u16 >> (state % 16)
                })
                .collect();
            let median = lower_median(&weights);
            weights.sort_unstable();
            assert_eq!(median, weights[(len - 1) / 2]);
        }
    }

    #[test]
    fn spread_gives_each_bit_a_byte() {
        for bits in 0..=u8::MAX {
            let expected = core::array::from_fn(|bit| bits >> bit & 1);
            assert_eq!(spread(u64::from(bits) | 0x500).to_le_bytes(), expected);
        }
    }

    #[test]
    fn bit_plane_counts_equal_counters() {
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
        for threshold in [1, 2, 100, 255, 256, 257, 300] {
            let seats = at_least(&members.delivered, threshold);
            for seat in 0..=255u8 {
                assert_eq!(bitmap::has(&seats, seat), counters[seat as usize] >= threshold);
                assert_eq!(delivered(&members, seat), counters[seat as usize]);
            }
        }
    }
}
