# Two commands do all the set-up: `make demo` runs the main job, `make test` passes the tests.
# Each builds .venv when it is missing or pyproject.toml changed; PYTHON picks the interpreter (>= 3.11).
PYTHON ?= python3
ENGINE ?= embedded
MODEL ?= llama
OPTIMIZER ?= sparseloco
VENV := .venv
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin/python

CONFIG ?= demo
DEVICE ?= cpu
CLIENTS ?= 3
TIERS ?= 0,1,2

# Every process would compile all modules again otherwise.
unexport PYTHONDONTWRITEBYTECODE
# What torch compiles outlives a reboot here, and phases of CI share it. numba keeps its kernels next to their sources.
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/.cache/torchinductor
export TRITON_CACHE_DIR ?= $(CURDIR)/.cache/triton

.PHONY: help demo local-testnet local-testnet-centralized test slow nightly test-times fuzz hostile lint fmt check site programs programs-check anchor-keys program-ids docs measure gpu-check clean env

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 38

env: $(STAMP)  ## make .venv with everything, the package installed in place

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { printf 'error: %s\nfix: %s\n' "aftermath needs Python 3.11 or newer" "make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV): PyTorch and some more are downloaded, which takes minutes"
	@if command -v uv >/dev/null; then uv venv -q --allow-existing --python $(PYTHON) $(VENV) && uv pip install -q --python $(RUN) -e '.[dev]'; \
	else test -x $(RUN) || $(PYTHON) -m venv $(VENV); $(RUN) -m pip install -q --disable-pip-version-check uv && \
	$(VENV)/bin/uv pip install -q --python $(RUN) -e '.[dev]'; fi
	@# Compile modules and kernels once, and not while a run or a test waits.
	@$(RUN) -m compileall -q client
	@$(RUN) -c 'import torch, anchorpy, iroh, huggingface_hub, matplotlib.pyplot, textual.app; from aftermath.kernels.runtime import unavailable_reason; unavailable_reason()'
	@touch $@

demo: $(STAMP)  ## the main job: three members, one killed (ENGINE=validator, MODEL=nanogpt, OPTIMIZER=distro, DEVICE=cuda, DIR=...)
	$(RUN) -m aftermath.demo --engine $(ENGINE) --model $(MODEL) --optimizer $(OPTIMIZER) --device $(DEVICE) $(if $(DIR),--dir "$(DIR)")

local-testnet: $(STAMP)  ## a run and its clients on this machine (CONFIG=demo, CLIENTS=3, TIERS=0,1,2, ARGS="--headless")
	$(VENV)/bin/aftermath-solana local-testnet start --num-clients $(CLIENTS) --config-path "$(CONFIG)" --client-matformer-tiers $(TIERS) $(ARGS)

local-testnet-centralized: $(STAMP)  ## the same on a centralized server
	$(MAKE) local-testnet ARGS="--backend centralized $(ARGS)"

# Three tiers of tests (CONTRIBUTING.md, Tests). Each run leaves what its tests cost in runs/test-times.
# Write --duration-table=PATH with `=`. With a space, pytest takes an existing PATH for a test path and does not load
# tests/conftest.py.
PYTEST := $(RUN) -m pytest --durations 15
TIMES := runs/test-times

test: $(STAMP)  ## the fast tests
	$(PYTEST) -n 3 -m "not slow and not nightly" --duration-table=$(TIMES)/fast.json

# Two workers run the queues of tests that mostly wait (tests/conftest.py), and two the rest.
slow: $(STAMP)  ## the slow tests: real processes, the real validator, property tests with 200 examples
	$(PYTEST) -n 4 -m "slow or hypothesis" --hypothesis-profile slow --duration-table=$(TIMES)/slow.json

nightly: $(STAMP)  ## campaigns of minutes each, run before you finish a larger change
	scripts/build-programs.sh --check
	$(PROGRAM_TESTS)
	$(PYTEST) -n 3 -m "nightly or hypothesis" --hypothesis-profile nightly --duration-table=$(TIMES)/nightly.json

test-times: test slow  ## measure what each test file costs, for tests/durations.tsv
	$(RUN) scripts/test_times.py --keep

TRANSACTIONS ?= 1000000

fuzz: $(STAMP)  ## random wallets against the programs (TRANSACTIONS=1000000)
	FUZZ_TRANSACTIONS=$(TRANSACTIONS) $(RUN) -m pytest -s -n 0 -m nightly tests/programs/test_programs_coalitions.py

hostile: $(STAMP)  ## members that lie in every way: what each did to a run, in runs/hostile.json (ATTACKS="silence,early ticks")
	ATTACKS="$(ATTACKS)" $(RUN) -m pytest -m nightly tests/hostile$(if $(ATTACKS),/test_hostile.py)

fmt: $(STAMP)  ## format Python, and Rust where cargo is
	$(VENV)/bin/ruff check --fix-only --quiet client tests benchmarks scripts
	$(VENV)/bin/ruff format client tests benchmarks scripts
	@if command -v cargo >/dev/null; then cargo fmt --all; else echo "no cargo here: Rust is not formatted"; fi

check: lint test  ## lint and test

lint: $(STAMP)  ## style, ruff, mypy, and clippy where cargo is
	$(RUN) scripts/check_style.py
	$(VENV)/bin/ruff check client tests benchmarks scripts
	$(VENV)/bin/ruff format --check client tests benchmarks scripts
	$(VENV)/bin/mypy
	@if command -v cargo >/dev/null; then cargo fmt --all -- --check && cargo clippy --quiet --all-targets -- -D warnings; else echo "no cargo here: Rust lints skipped"; fi

# The pages that are made from something else: commands from their help, keys from their classes, figures from benchmarks/measured.
docs: $(STAMP)  ## write the generated pages and tables: commands, config, measurements
	$(RUN) -m aftermath.cli.commands_page docs/commands.md
	$(RUN) -m aftermath.server.commands_page docs/commands-centralized.md
	$(RUN) -m aftermath.cli.config_page docs/config.md
	$(RUN) benchmarks/plots.py docs/assets
	$(RUN) benchmarks/quote.py docs/measurements.md docs/experiments.md

site: $(STAMP)  ## the documentation as a site, in runs/site
	$(RUN) -m mkdocs build -f config/site/mkdocs.yml

# Repeats the measurements that the documentation quotes; `make docs` afterwards.
measure: $(STAMP)  ## measure what the pages quote
	$(RUN) benchmarks/measure.py

# On a machine with a GPU: tests on it, its bits against the CPU's, its speed and memory, kept for the pages to quote.
gpu-check: $(STAMP)  ## check a GPU: tests, exactness, speed, memory
	$(RUN) benchmarks/gpu.py

# The seed's recipes: set a run up on a local network or on devnet, then train in it.
airdrop-devnet: $(STAMP)  ## test SOL on devnet for the wallet that WALLET_PRIVATE_KEY_PATH names
	$(RUN) scripts/airdrop.py devnet

setup-solana-localnet-light-test-run:  ## a run of 8.5 M parameters on `aftermath-solana localnet`
setup-solana-localnet-test-run:  ## the same with 0.97 B parameters
setup-solana-devnet-light-test-run:  ## the small one on devnet (WALLET_PRIVATE_KEY_PATH names a funded wallet)
setup-solana-devnet-test-run:  ## the large one on devnet
setup-solana-localnet-test-run setup-solana-localnet-light-test-run \
setup-solana-devnet-test-run setup-solana-devnet-light-test-run: setup-solana-%-run: $(STAMP)
	sh scripts/setup-run.sh $(firstword $(subst -, ,$*)) $(if $(findstring light,$*),light,test)

start-training-light-client:  ## train in the small one on the local network, as often as you like
start-training-client:  ## train in the large one there
start-training-devnet-light-client:  ## train in the small one on devnet
start-training-devnet-client:  ## train in the large one there
start-training-client start-training-light-client \
start-training-devnet-client start-training-devnet-light-client: start-training-%client: $(STAMP)
	sh scripts/start-training.sh $(if $(findstring devnet,$*),devnet,localnet) $(if $(findstring light,$*),light,test)

# The build for the IDLs compiles the same tests: they add seconds to it, and minutes to `make lint`.
PROGRAM_TESTS := cargo test --quiet --locked --workspace --lib --features coordinator/idl-build,authorizer/idl-build \
	--target-dir target/idl -- --skip __anchor_private

programs: $(STAMP)  ## run the unit tests of both programs, and build them
	$(PROGRAM_TESTS)
	scripts/build-programs.sh
	$(VENV)/bin/python scripts/legacy_idl.py

programs-check:  ## prove that the committed programs are those of the sources, by a build if these changed
	scripts/build-programs.sh --check-changed

# `anchor build`, `anchor keys` and `anchor deploy` look for the programs' keys there and nowhere else.
anchor-keys:  ## copy the programs' keys to where Anchor's tools look for them
	mkdir -p target/deploy
	for name in coordinator authorizer; do install -m 600 keys/$$name-keypair.json target/deploy/ || exit 1; done

program-ids: $(STAMP)  ## make new addresses for both programs, and build them
	$(RUN) scripts/new-program-ids.py

clean:  ## remove the environment, build output and runs
	rm -rf $(VENV) .cache target runs .pytest_cache .mypy_cache .ruff_cache
