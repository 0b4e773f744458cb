//! Validate a model and a schema. The program does not read the training spec; clients check it.

use crate::{constants::*, errors::CoordinatorError, state::*};
use anchor_lang::prelude::*;
use solana_sha256_hasher::hashv;

const MAX_SEQ_LEN: u32 = 1 << 24;

pub fn check_length(max_seq_len: u32) -> Result<()> {
    require!((1..=MAX_SEQ_LEN).contains(&max_seq_len), CoordinatorError::MaxSeqLenOutOfRange);
    Ok(())
}

/// Refuse a training spec whose hash differs from the one the owner names, because it was not written completely.
#[inline(never)]
pub fn check_spec(spec: &[u8; SPEC_BYTES], named: &SpecParams) -> Result<()> {
    let length = usize::from(named.len);
    require!((1..=SPEC_BYTES).contains(&length), CoordinatorError::SpecLength);
    // SHA-256, because every cluster has its syscall; BLAKE3's depends on a feature.
    let hash = hashv(&[&spec[..length]]).to_bytes();
    require!(hash == named.hash, CoordinatorError::SpecMismatch);
    Ok(())
}

#[inline(never)]
pub fn check_checkpoint(kind: u8, repo: &str) -> Result<()> {
    let known = matches!(kind, checkpoint_kind::HUB | checkpoint_kind::LOCAL | checkpoint_kind::DUMMY);
    require!(known, CoordinatorError::UnknownCheckpoint);
    require!(kind == checkpoint_kind::DUMMY || !repo.is_empty(), CoordinatorError::RepoMissing);
    Ok(())
}

#[inline(never)]
pub fn check_schema(hash: &Hash, widths: &[u32]) -> Result<()> {
    require!((1..=MAX_LEVELS).contains(&widths.len()), CoordinatorError::TiersOutOfRange);
    let falling = widths.windows(2).all(|pair| pair[0] > pair[1]);
    let positive = widths.iter().all(|width| *width > 0);
    require!(falling && positive, CoordinatorError::TierWidthsInvalid);
    require!(*hash != [0; 32], CoordinatorError::SchemaHashZero);
    Ok(())
}
