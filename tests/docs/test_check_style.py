"""Test the style check (scripts/check_style.py): the offences it finds in a snippet, and when it
fails.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from docs.test_docs import ROOT

DEFINITION = '"""A module."""\n\ndef f() -> None:\n    """{}"""\n'


def load_gate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_style", ROOT / "scripts/check_style.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


gate = load_gate()


def rules_of(path: str, source: str) -> list[str]:
    return [offence.rule for offence in gate.check_text(path, source)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("docs/a.md", "Whoever joins later waits."),
        ("programs/a.rs", "// one so\n    /// many, in two lines"),
        ("client/aftermath/a.py", "# as so\n# many as join\n"),
        ("client/aftermath/a.py", "goes_on = True\n"),
        ("client/aftermath/a.py", "raise Refused('mend it')\n"),
    ],
)
def test_archaic_word_is_found_in_text_and_names(path: str, source: str) -> None:
    assert rules_of(path, source) == ["archaic-word"]


@pytest.mark.parametrize(
    "text", ["An amendment recommends.", "also many", "a far-beside", "Besides, it goes."]
)
def test_archaic_word_ignores_other_words(text: str) -> None:
    assert rules_of("docs/a.md", text) == []


@pytest.mark.parametrize(
    ("doc", "is_offence"),
    [
        ("Of these.", True),
        ("The same.", True),
        ("One of them.", True),
        ("Whose weights answered.", True),
        ("With which it was applied.", True),
        ("Return the same levels.", False),
        ("Offer a block.", False),
        ("One of two holders is drawn.", False),
        ("Bytes of each state tensor.", False),
    ],
)
def test_fragment_docstring_without_own_content_is_found(doc: str, is_offence: bool) -> None:
    assert (
        rules_of("client/aftermath/a.py", DEFINITION.format(doc))
        == ["fragment-docstring"] * is_offence
    )


def test_fragment_docstring_is_found_on_attribute() -> None:
    source = 'class A:\n    size: int\n    """Of these."""\n'
    assert rules_of("client/aftermath/a.py", source) == ["fragment-docstring"]


@pytest.mark.parametrize(("lines", "is_offence"), [(6, False), (7, True)])
def test_module_docstring_has_at_most_six_lines(lines: int, is_offence: bool) -> None:
    source = '"""' + "\n".join(["Text."] * lines) + '\n"""\n'
    assert rules_of("client/aftermath/a.py", source) == ["long-module-docstring"] * is_offence


@pytest.mark.parametrize(("length", "is_offence"), [(60, False), (61, True)])
def test_test_name_has_at_most_sixty_characters(length: int, is_offence: bool) -> None:
    name = "test_".ljust(length, "x")
    assert (
        rules_of("tests/rules/test_a.py", f"async def {name}() -> None: ...\n")
        == ["long-test-name"] * is_offence
    )


@pytest.mark.parametrize(
    ("source", "is_offence"),
    [
        ("# " + "x" * 98, False),
        ("# " + "x" * 99, True),
        ('def f() -> None:\n    """' + "x" * 90 + ' y."""\n', True),
        ("value = '" + "x" * 99 + "'", False),  # the formatter wraps such lines
    ],
)
def test_long_line_is_counted_in_comments_and_docstrings(source: str, is_offence: bool) -> None:
    assert rules_of("client/aftermath/a.py", source + "\n") == ["long-line"] * is_offence


@pytest.mark.parametrize(
    ("source", "is_offence"),
    [
        ("a, b = 1, 2", True),
        ("def f() -> None:\n    self.a, self.b = a, b", True),
        ("try:\n    a, b = f(), 2\nfinally:\n    pass", True),
        ("a, b = b, a + b", False),
        ("rows[i], rows[j] = rows[j], rows[i]", False),
        ("a, b = pair", False),
        ("a = 1, 2", False),
        ("a, *b = 1, 2", True),
        ("for a, b in pairs: pass", False),
    ],
)
def test_tuple_packing_of_unrelated_names_is_found(source: str, is_offence: bool) -> None:
    assert rules_of("client/aftermath/a.py", source + "\n") == ["tuple-packing"] * is_offence


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("word " * 40 + "end.", 1),
        ("word " * 39 + "end. " + "word " * 39 + "end.", 0),
        ("- " + "word " * 30 + "\n  " + "word " * 30, 1),
        ("- " + "word " * 30 + "\n- " + "word " * 30, 0),
        ("word " * 30 + "\n\n" + "word " * 30, 0),
        ("```sh\n" + "word " * 60 + "\n```", 0),
        ("| " + "word " * 60 + " |", 0),
        ("# " + "word " * 60, 0),
    ],
)
def test_long_sentence_is_found_outside_code_and_tables(text: str, sentences: int) -> None:
    assert rules_of("docs/a.md", text) == ["long-sentence"] * sentences


def test_duplicate_class_is_found_only_in_client() -> None:
    sources = {
        "client/aftermath/a/x.py": "class Plan: ...\nclass _Own: ...\n",
        "client/aftermath/b/y.py": "class Plan: ...\nclass _Own: ...\n",
        "tests/a/test_x.py": "class Plan: ...\n",
    }
    offences = [
        (offence.path, offence.text.partition(",")[0])
        for offence in gate.duplicate_classes(sources)
    ]
    assert offences == [("client/aftermath/a/x.py", "Plan"), ("client/aftermath/b/y.py", "Plan")]


def test_offence_fails_with_place_and_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "read_sources", lambda: {"docs/a.md": "One.\n\nDrawn anew."})
    monkeypatch.setattr(sys, "argv", ["check_style.py"])
    assert gate.main() == 1
    out, err = capsys.readouterr()
    assert out.startswith("docs/a.md:3: archaic-word: ")
    assert err == f"fix: archaic-word: {gate.RULES['archaic-word']}\n"


def test_offence_outside_named_paths_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "read_sources", lambda: {"docs/a.md": "Drawn anew."})
    monkeypatch.setattr(sys, "argv", ["check_style.py", "client/"])
    assert gate.main() == 0
