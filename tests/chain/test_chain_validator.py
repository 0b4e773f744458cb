"""Run tests of the other files whose result may depend on the engine against the real validator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from aftermath.localnet import validator_binary
from chain.funded_network import PROGRAMS, FundedNetwork, fund_network
from chain.test_chain_client import (  # noqa: F401
    test_equal_instructions_are_two_transactions,
    test_insufficient_funds_error_names_missing_sum,
    test_packing_keeps_order_and_fits,
    test_priority_fees_stay_within_users_limit,
    test_refusals_have_program_name_and_sentence,
    test_run_is_created_configured_started_and_closed,
    test_wrong_program_id_is_reported,
)
from chain.test_chain_deploy import (  # noqa: F401
    larger_elf,
    larger_so,
    test_deploy_cost_of_larger_program_is_known_before,
    test_deploy_keeps_equal_and_upgrades_larger_program,
)
from chain.test_chain_funding import (  # noqa: F401
    test_drained_member_is_refilled_by_local_network,
    test_drained_wallet_error_names_sum_balance_and_address,
)
from chain.test_chain_hostile import test_lagging_node_is_ignored_and_fallback_is_used  # noqa: F401
from chain.test_chain_member import test_chain_member_completes_epoch  # noqa: F401
from chain.test_chain_subscription import (  # noqa: F401
    test_closed_run_ends_updates,
    test_updates_start_with_current_state_and_follow_changes,
)
from chain.test_chain_transactions import test_sent_transaction_is_read_once_with_fee  # noqa: F401
from localnet.localnet_processes import Urls, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def validator() -> Iterator[Urls]:
    """Start one validator for all tests. It ends with this file, because it uses half a core."""
    if validator_binary() is None:
        pytest.skip("no solana-test-validator on this machine (set AFTERMATH_VALIDATOR to one)")
    programs = [part for key, path in PROGRAMS for part in ("--program", f"{key}={path}")]
    process, rpc, ws = start("--engine", "validator", "--slot-ms", "100", *programs)
    try:
        yield Urls("validator", rpc, ws)
    finally:
        process.terminate()
        process.wait(30)


@pytest_asyncio.fixture(loop_scope="module")
async def funded(validator: Urls) -> AsyncIterator[FundedNetwork]:
    async with fund_network(validator) as funded:
        yield funded
