"""The shipped seed config, ways to change it, and a change that breaks each rule of the program."""

from __future__ import annotations

import math
import re
from pathlib import Path

SEED = Path(__file__).with_name("seed-config.toml").read_text()
CHECKPOINT = "model.LLM.checkpoint.Hub"


def changed(*replacements: tuple[str, str]) -> str:
    """Return the seed config with each (pattern, replacement) applied. A pattern must occur exactly
    once.
    """
    text = SEED
    for pattern, replacement in replacements:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert count == 1, pattern
    return text


def without(table: str, instead: str) -> str:
    """Return the seed config with one [table] (up to the next header) replaced."""
    return changed((rf"^\[{re.escape(table)}\][^\[]*(?=\[|\Z)", instead + "\n"))


DISTRO = r"^\[model\.LLM\.optimizer\.Distro\][\s\S]*"
SPARSELOCO = "[model.LLM.optimizer.SparseLoCo]\n"
RULES = [
    ("EpochLengthMissing", r"^rounds_per_epoch = 20", "", 1),
    ("WarmupTooLong", r"^rounds_per_epoch = 20", "epoch_time = 30", 3),
    ("CooldownTimeZero", r"^cooldown_time = 30", "cooldown_time = 0", 6),
    ("RoundTrainTimeZero", r"^max_round_train_time = 30", "max_round_train_time = 0", 15),
    (
        "RoundTrainTimeTooLong",
        r"^max_round_train_time = 30",
        "max_round_train_time = 31\nepoch_time = 31",
        15,
    ),
    (
        "MinRoundTimeInvalid",
        r"^round_witness_time = 1",
        "min_round_time = 31\nround_witness_time = 1",
        18,
    ),
    ("RoundWitnessTimeZero", r"^round_witness_time = 1", "round_witness_time = 0", 18),
    (
        "ExtraTimeZero",
        r"^total_steps = 25000\n\n# M",
        "waiting_for_members_extra_time = 0\ntotal_steps = 1\n\n# M",
        44,
    ),
    ("TimeTooLong", r"^cooldown_time = 30", "cooldown_time = 2592001", 6),
    ("MinClientsZero", r"^min_clients = 1", "min_clients = 0", 24),
    ("InitMinClientsOutOfRange", r"^init_min_clients = 1", "init_min_clients = 257", 28),
    ("WitnessNodesTooMany", r"^witness_nodes = 1", "witness_nodes = 33", 34),
    ("WitnessNodesAboveMinClients", r"^witness_nodes = 1", "witness_nodes = 2", 34),
    ("BatchSizeZero", r"^global_batch_size_start = 8", "global_batch_size_start = 0", 39),
    ("BatchSizeShrinks", r"^global_batch_size_end = 8", "global_batch_size_end = 7", 40),
    (
        "BatchWarmupTooLong",
        r"^global_batch_size_warmup_tokens = 0",
        f"global_batch_size_warmup_tokens = {2**47 + 1}",
        41,
    ),
    ("TotalStepsZero", r"^total_steps = 25000\n\n# M", "total_steps = 0\n\n# M", 44),
    ("VerificationPercentTooLarge", r"^verification_percent = 0", "verification_percent = 101", 31),
    ("OverlapInvalid", r"^verification_percent = 0", "overlap = 2", 31),
    ("MaxSeqLenOutOfRange", r"^max_seq_len = 2048", "max_seq_len = 0", 52),
    (
        "ColdStartTooLong",
        r"^max_seq_len = 2048",
        "max_seq_len = 2048\ncold_start_warmup_steps = 21",
        53,
    ),
    ("RepoMissing", r"^repo_id.*", 'repo_id = ""', 55),
    ("RepoTooLong", r"^repo_id.*", f'repo_id = "{"é" * 97}"', 55),
    ("RevisionTooLong", r"^(repo_id.*)", rf'\1\nrevision = "{"r" * 65}"', 56),
    ("LocationLength", r"^bucket_name.*", 'bucket_name = ""', 57),
    ("LocationFolderTooLong", r"^filter_directory.*", f'filter_directory = "{"f" * 193}"', 63),
    ("LearningRateInvalid", r"^base_lr.*", "base_lr = nan", 66),
    ("LearningRateInvalid", r"^base_lr.*", "base_lr = 0.0", 66),
    ("LearningRateInvalid", r"^final_lr.*", "final_lr = -0.0", 70),
    ("ScheduleTooShort", r"^warmup_steps = 250", "warmup_steps = 25000", 69),
    ("OptimizerNumberInvalid", r"^compression_decay.*", "compression_decay = 1.0", 75),
    ("OptimizerNumberInvalid", r"^clip_grad_norm.*", "clip_grad_norm = inf", 74),
    ("ChunkOutOfRange", r"^compression_chunk.*", "compression_chunk = 4097", 76),
    ("TopkOutOfRange", r"^compression_topk.*", "compression_topk = 4097", 77),
    ("TopkOutOfRange", r"^(compression_topk.*)", r"\1\ncompression_topk_embeddings = 4097", 78),
    ("InnerStepsOutOfRange", DISTRO, SPARSELOCO + "inner_steps = 0", 74),
    ("InnerStepsOutOfRange", DISTRO, SPARSELOCO + "inner_steps = 1025", 74),
    ("OuterRateOutOfRange", DISTRO, SPARSELOCO + "outer_lr = 0.0", 74),
    ("OuterRateOutOfRange", DISTRO, SPARSELOCO + "outer_lr = -1.0", 74),
    ("OuterRateOutOfRange", DISTRO, SPARSELOCO + "orthogonal_lr = -1.0", 74),
    ("OuterRateOutOfRange", DISTRO, SPARSELOCO + f"orthogonal_lr = {math.nextafter(64, 65)!r}", 74),
    ("OuterRateOutOfRange", DISTRO, SPARSELOCO + "outer_lr = nan", 74),
    ("OuterRateOutOfRange", DISTRO, SPARSELOCO + f"outer_lr = {math.nextafter(64, 65)!r}", 74),
    ("OuterMomentumOutOfRange", DISTRO, SPARSELOCO + "outer_momentum = -0.1", 74),
    ("OuterMomentumOutOfRange", DISTRO, SPARSELOCO + "outer_momentum = 1.0", 74),
    ("OuterMomentumOutOfRange", DISTRO, SPARSELOCO + "outer_momentum = nan", 74),
    ("ValueBitsInvalid", DISTRO, SPARSELOCO + "value_bits = 0", 74),
    ("ValueBitsInvalid", DISTRO, SPARSELOCO + "value_bits = 3", 74),
    ("ChunkOutOfRange", DISTRO, SPARSELOCO + "compression_chunk = 4097", 74),
    ("TopkOutOfRange", DISTRO, SPARSELOCO + "compression_topk = 4097", 74),
    ("TopkOutOfRange", DISTRO, SPARSELOCO + "compression_topk_embeddings = 4097", 74),
    ("OptimizerNumberInvalid", DISTRO, SPARSELOCO + "compression_decay = 1.0", 74),
    ("OptimizerNumberInvalid", DISTRO, SPARSELOCO + "weight_decay = -0.1", 74),
]
