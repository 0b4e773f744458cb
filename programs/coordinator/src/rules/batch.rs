//! The global batch size, which grows from its start to its end value.

use crate::state::Config;

/// Return the batch size in sequences at the fresh sequence `data_index`: linear in tokens, rounded half up.
///
/// No product here can overflow. They are unchecked, because a check needs 128-bit arithmetic, which sBPF lacks.
pub fn size(config: &Config, data_index: u64) -> u16 {
    let start = config.global_batch_size_start;
    let end = config.global_batch_size_end;
    let warmup = config.global_batch_size_warmup_tokens;
    let length = u64::from(config.max_seq_len.max(1));
    if warmup == 0 || data_index > (warmup - 1) / length {
        return end;
    }
    let tokens = data_index.wrapping_mul(length); // below `warmup`, which is at most 2^47
    let growth = u64::from(end.saturating_sub(start)).wrapping_mul(tokens); // below 2^63
    start + ((growth + warmup / 2) / warmup) as u16
}
