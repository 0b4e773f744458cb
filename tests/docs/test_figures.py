"""Every figure that a page quotes is the one that was measured, and a page that quotes has none of another origin."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from aftermath.localnet.runtime import minimum_balance
from aftermath.model.levels import Segment
from aftermath.optim.blocks import Blocks
from aftermath.optim.format import ResultFormat, Transform, Values
from hostile.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
RESEARCH = ROOT / "docs/research.md"
PROGRAMS = ROOT / "client/aftermath/programs"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
UNITS = (
    "ms|s|seconds|minutes|hours|days|kB|MB|GB|MiB|KiB|bytes|B|bits|nats?|SOL|lamports|M|steps|rounds|comparisons|"
    "transactions|signatures|units|parameters|messages|streams|times"
)
FIGURE = re.compile(rf"(?<![\w.^/-])(?:\d+\.\d+|\d{{1,3}}(?:,\d{{3}})+|\d+(?= (?:%|(?:{UNITS})\b)))(?![\w]|\.\d)")
SET_BY_US = {
    "provider.md": {
        "16",  # bytes of four fp32 numbers
    },
    "research.md": {
        "16",  # bytes of four fp32 numbers
        "4",  # bytes of one
        *("0.001", "0.00022"),  # DeepSeek's rates, as published
        "32,003",  # an example of a vocabulary with an awkward size, and of one without
        "32,000",
        "4,096",  # coefficients of a block
        *("12.0", "12.8", "13.8", "40.0", "40.8", "44.8", "72.0", "72.8", "80.8"),  # bytes of one, as tested below
        "81",  # bits of a rank among all sets of 8 of 4,096
        "7",  # bits of three digits, and what an index code takes beyond a rank
        "1,196",  # bytes of a block that keeps all
        "36",  # bytes for 32 indices of one
        "2",  # of a value
    },
    "security.md": {
        "256",  # KiB of a block of a private state: optim/private_blocks.py
        "512",  # MiB of copies: replica/stateshare.py
    },
    "operations.md": {
        "2,088,000",  # lamports of rent by Solana's rule, here and in the next four
        "0.0021",
        "16,342,080",
        "0.0163",
        "0.6015",
        "5,000",  # lamports of a signature, here and in the next
        "0.000005",
        "0.005",  # SOL that a member has in hand: chain/admission.py
        "10",  # percent above what a simulation measured: chain/sender.py
        "10,000",  # the default of --max-priority-fee
        "2,000",  # lamports at that default, rounded up
    },
    "experiments.md": {
        *(
            "1.5",
            "400",
            "100",
        ),  # slots of a round and milliseconds, of the model of the protocol: benchmarks/seconds.py
        "320",  # steps of most runs: benchmarks/arms.toml
        "95",  # % of an interval
    },
    "program.md": {"200,000"},  # Solana's limit
}
"""Figures that are settings, limits, rules or arithmetic, by page: nobody measures them."""

WHOLE = {"research.md"}
"""Pages that are about what was reached. In the others, which are reference, only sections that quote are looked at."""


def module(name: str) -> ModuleType:
    """A script of benchmarks/, where `chain` and others would hide packages of these tests if it were in the path."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


quote, measure = module("quote"), module("measure")


def own_figures(text: str) -> list[str]:
    """The figures in a page's prose that are quoted from nowhere; code and what stands in backquotes is no prose."""
    for pattern in (quote.BLOCK, quote.QUOTE, FENCE):
        text = pattern.sub("", text)
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)|^> .*$", "", text, flags=re.MULTILINE)
    return FIGURE.findall(text)


def quotes(text: str) -> bool:
    return bool(quote.QUOTE.search(text) or quote.BLOCK.search(text))


def sections(page: Path) -> list[str]:
    """The parts of a page that are looked at as one."""
    text = page.read_text()
    return [text] if page.name in WHOLE else re.split(r"^(?=## )", text, flags=re.MULTILINE)


@pytest.fixture(params=PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_quoted_figures_are_those_measured(page: Path) -> None:
    assert page.read_text() == quote.quoted(page.read_text()), "run: make docs"


def test_what_quotes_has_no_figures_of_its_own(page: Path) -> None:
    own = [found for section in sections(page) if quotes(section) for found in own_figures(section)]
    known = SET_BY_US.get(page.name, set())
    strange = [found for found in own if found not in known]
    assert not strange, "quote it as benchmarks/quote.py says, or list it here if nobody measures it"
    assert not known - set(own), "these are not in the page any more"


def test_the_sizes_of_a_block_are_those_of_results() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", RESEARCH.read_text(), re.MULTILINE)
    assert [int(row[0]) for row in rows] == [8, 32, 64]
    square = Blocks(Segment("square", 0, None, 0, 64, (64, 64)), (64, 64), 1)
    for kept, bits, *sizes in rows:
        results = [
            ResultFormat((replace(square, topk=int(kept)),) * 8, 1, Transform.NONE, values)
            for values in (Values.SIGN, Values.ONE_BIT, Values.TWO_BIT)
        ]
        assert results[0].place_bytes(0) == int(bits)  # of eight blocks
        assert sizes == [f"{one.payload_bytes(0) / 8:.1f}" for one in results]


@pytest.mark.parametrize("values", [Values.ONE_BIT, Values.TWO_BIT])
def test_the_size_of_a_block_that_keeps_all_is_that_of_a_result(values: Values) -> None:
    said = re.search(r"keeps all takes ([\d,]+) bytes with\s+two bits and ([\d,]+) with one", RESEARCH.read_text())
    assert said
    square = Blocks(Segment("square", 0, None, 0, 64, (64, 64)), (64, 64), 4096)
    size = ResultFormat((square,) * 8, 1, Transform.NONE, values).payload_bytes(0) / 8
    assert said[1 if values is Values.TWO_BIT else 2] == f"{size:,.0f}"


def test_no_line_begins_with_a_quote(page: Path) -> None:
    """Markdown would end the paragraph there."""
    assert not re.search(r"^ {0,3}<!-- (?!/?block)", page.read_text(), flags=re.MULTILINE), "put a word before it"


def test_pages_with_measured_figures_quote_them() -> None:
    assert all(
        quotes((ROOT / name).read_text()) for name in ("docs/provider.md", "docs/research.md", "docs/program.md")
    )


@pytest.mark.parametrize(
    "sentence", ["It took 75 s.", "166 MB/s from one", "in 2.61 nats", "4,532 in all", "about 8 GB", "(0.97 B)", "3 %"]
)
def test_a_figure_in_a_sentence_is_seen(sentence: str) -> None:
    assert own_figures(sentence)


@pytest.mark.parametrize("sentence", ["tier 2", "`--port 8899 s`", "4 members", "2^27", "64 × 64", "0 to 7"])
def test_what_is_no_figure_is_left_alone(sentence: str) -> None:
    assert not own_figures(sentence)


def test_a_changed_measurement_changes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quote, "MEASURED", tmp_path)
    (tmp_path / "walk.json").write_text(json.dumps({"command": "walk", "figures": {"steps": [1234567, 0.5]}}))
    marks = ("walk.steps.0", "walk.steps.0 /1e6 .1f", "walk.steps.1")
    page = ", ".join(f"<!-- {mark} -->1<!-- / -->" for mark in marks)
    assert re.sub(r"<!-- [^>]* -->", "", quote.quoted(page)) == "1,234,567, 1.2, 0.5"
    assert quote.quoted(quote.quoted(page)) == quote.quoted(page)
    assert quote.figure("run.steps", " /1e6", " .1f") == quote.UNKNOWN  # of a benchmark that nobody has run
    for wrong in ("walk.miles", "walk.steps", "walk.steps.2"):
        with pytest.raises(quote.BadQuote):
            quote.quoted(f"<!-- {wrong} -->1<!-- / -->")


def test_every_file_says_how_it_was_measured() -> None:
    files = {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks/measured").glob("*.json")}
    commands = measure.COMMANDS | measure.ON_A_GPU
    assert set(measure.COMMANDS) <= set(files) <= set(commands)
    assert all(kept["command"] == commands[name] for name, kept in files.items())
    assert all(kept["figures"] and kept["machine"] for kept in files.values())


def test_the_table_of_attacks_has_all_of_them_and_says_why_a_bar_is_missed() -> None:
    rows = quote.figures("hostile")["rows"]
    assert {row["attack"] for row in rows} == set(ATTACKS)
    assert all(row["known"] for row in rows if row["not_met"])
    assert "block: attacks" in (ROOT / "docs/security.md").read_text()


def test_what_is_kept_meets_the_bars_that_are_no_times() -> None:
    """Of instructions at 256 members, of a subscriber, of a run's rent, and of hashing what a member alone knows."""
    chain, roots = quote.figures("chain"), quote.figures("roots")
    assert chain["members"][-1] == 256
    assert all(units[-1] is not None and max(units) <= 50_000 for units in chain["compute_units"].values())
    assert max(chain["push_bytes_max"].values()) <= 2_048
    assert chain["rent_lamports_total"] == sum(chain["rent_lamports"].values()) <= 600_000_000
    assert roots["cpu_of_round"] + roots["copy_cpu_of_round"] <= 0.03
    assert max(one["2"]["cpu_of_round"] for one in roots.values() if isinstance(one, dict)) == roots["cpu_of_round"]


def test_rounded_figures_of_pages_that_do_not_quote() -> None:
    def said(pattern: str, page: str) -> str:
        found = re.search(pattern, re.sub(r"\s+", " ", (ROOT / "docs" / page).read_text()))
        assert found, pattern
        return found[1]

    chain, memory = quote.figures("chain"), quote.figures("memory")
    upstream = round(chain["upstream_one_position_units"], -3)
    assert said(r"some ([\d,]+) compute units for one member", "design.md") == f"{upstream:,}"
    light, large = (memory[name]["parameters"][0] for name in ("light", "test"))
    assert said(r"the light recipe's, ([\d.]+) million", "local-testnet.md") == f"{light / 1e6:.1f}"
    assert said(r"the test recipe's, ([\d.]+) billion", "local-testnet.md") == f"{large / 1e9:.2f}"
    assert said(r"light recipe's model \(([\d.]+) M parameters\)", "operations.md") == f"{light / 1e6:.1f}"
    programs = [PROGRAMS / f"{name}.so" for name in ("coordinator", "authorizer")]
    rent = sum(
        minimum_balance(one.stat().st_size + 45) for one in programs
    )  # the program data account has 45 bytes more
    assert said(r"both programs take about ([\d.]+) SOL of rent", "operations.md") == f"{rent / 1e9:.1f}"
    assert said(r"SOL of rent, the run (\d+\.\d+)", "operations.md") == f"{chain['rent_lamports_total'] / 1e9:.1f}"


def test_the_command_brings_a_page_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- memory.light.parameters.0 -->none<!-- / --> parameters\n")
    monkeypatch.setattr(sys, "argv", ["quote.py", str(page)])
    assert quote.main() == 0
    assert f"-->{quote.figures('memory')['light']['parameters'][0]:,}<!--" in page.read_text()


def test_the_command_explains_itself_and_a_page_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quote.py", "-h"])
    with pytest.raises(SystemExit) as ended:
        quote.main()
    assert ended.value.code == 0
    assert "PAGE" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["quote.py", str(tmp_path / "none.md")])
    assert quote.main() == 1
    assert capsys.readouterr().err.startswith(f"error: cannot read {tmp_path / 'none.md'}: No such file")
