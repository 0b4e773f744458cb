# Two commands do all the set-up: `make demo` runs the main job, `make test` passes the tests.
# Each builds .venv when it is missing or pyproject.toml changed; PYTHON picks the interpreter (>= 3.11).
PYTHON ?= python3
ENGINE ?= embedded
MODEL ?= llama
VENV := .venv
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin/python

.PHONY: demo test slow lint programs programs-check docs measure clean env

env: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { printf 'error: %s\nfix: %s\n' "aftermath needs Python 3.11 or newer" "make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "making $(VENV): PyTorch and some more are downloaded, which takes minutes"
	@if command -v uv >/dev/null; then uv venv -q --allow-existing --python $(PYTHON) $(VENV) && uv pip install -q --python $(RUN) -e '.[dev]'; \
	else test -x $(RUN) || $(PYTHON) -m venv $(VENV); $(RUN) -m pip install -q --disable-pip-version-check -e '.[dev]'; fi
	@$(RUN) -m compileall -q client  # else every process does, where PYTHONDONTWRITEBYTECODE is set
	@touch $@

demo: $(STAMP)
	$(RUN) -m aftermath.demo --engine $(ENGINE) --model $(MODEL) $(if $(DIR),--dir "$(DIR)")

# Real sockets and processes on a busy machine: a test that fails is run once more, and reported as rerun.
PYTEST := $(RUN) -m pytest --reruns 1 -r R --durations 15

test: $(STAMP)
	$(PYTEST) -n 3 -m "not slow"

# End to end one after the other on one worker, since a run and a validator keep more than one core busy, though they
# often wait; the rest beside them.
slow: $(STAMP)
	$(PYTEST) -m slow -n 3

lint: $(STAMP)
	$(VENV)/bin/ruff check client tests benchmarks scripts
	$(VENV)/bin/ruff format --check client tests benchmarks scripts
	$(VENV)/bin/mypy
	@if command -v cargo >/dev/null; then cargo fmt --all -- --check && cargo clippy --quiet --all-targets -- -D warnings; else echo "no cargo here: Rust lints skipped"; fi

# The pages that are made from something else: commands from their help, figures from benchmarks/measured.
docs: $(STAMP)
	$(RUN) -m aftermath.cli.docs docs/commands.md
	$(RUN) benchmarks/plots.py docs
	$(RUN) benchmarks/quote.py README.md docs/*.md

# Measures anew what the documentation quotes; `make docs` afterwards.
measure: $(STAMP)
	$(RUN) benchmarks/measure.py

# The seed's recipes: set a run up on a local network or on devnet, then train in it.
setup-solana-localnet-test-run setup-solana-localnet-light-test-run \
setup-solana-devnet-test-run setup-solana-devnet-light-test-run: setup-solana-%-run: $(STAMP)
	sh scripts/setup-run.sh $(firstword $(subst -, ,$*)) $(if $(findstring light,$*),light,test)

start-training-client start-training-light-client \
start-training-devnet-client start-training-devnet-light-client: start-training-%client: $(STAMP)
	sh scripts/start-training.sh $(if $(findstring devnet,$*),devnet,localnet) $(if $(findstring light,$*),light,test)

programs:
	scripts/build-programs.sh

programs-check:
	scripts/build-programs.sh --check

clean:
	rm -rf $(VENV) target runs .pytest_cache .mypy_cache .ruff_cache
