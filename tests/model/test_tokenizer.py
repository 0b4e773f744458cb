"""Untrusted tokenizer.json files: a bad one ends at most its own process, and gives an error."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import psutil
import pytest
import tokenizers
from tokenizers import models

from aftermath.data.bytelevel import byte_tokenizer
from aftermath.model import tokenizer as module
from aftermath.model.json_documents import CheckpointError
from aftermath.model.text import Prompt
from aftermath.model.tokenizer import Tokenizer
from aftermath.model.tokenizer_process import LENGTH
from model.library_tokenizer import isolated_tokenizer

TEXT = "Once upon a time aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"


def _changed(**parts: Any) -> Tokenizer:
    return Tokenizer(
        json.dumps({**json.loads(byte_tokenizer().to_str()), **parts}).encode(),
        "there/tokenizer.json",
    )


def _padding(**options: Any) -> dict[str, Any]:
    fixed = {
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    return {"padding": fixed | options}


def _sequence(part: dict[str, Any], times: int, kind: str) -> dict[str, Any]:
    return {"type": "Sequence", kind: [part] * times}


MORE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
OF_NOTHING = {"type": "Replace", "pattern": {"String": ""}, "content": "a" * 5000}
REGEX = {
    "type": "Split",
    "pattern": {"Regex": "(a+)+$|(a|aa)+b"},
    "behavior": "Isolated",
    "invert": False,
}
CUT = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 3}
# in the library, these end the process, exhaust memory, or raise something that is not an Exception
HOSTILE: dict[str, dict[str, Any]] = {
    "replacements that multiply": {"normalizer": _sequence(MORE, 4, "normalizers")},
    "a pattern without end": {"pre_tokenizer": REGEX},
    "pieces of nothing": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a map that is none": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a map beyond itself": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/" * 21 + "w=="}
    },
    "text that multiplies": {"decoder": _sequence(OF_NOTHING, 4, "decoders")},
}


_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_BYTE_LEVEL = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
FILLS_MEMORY = {"replacements that multiply", "text that multiplies"}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=pytest.mark.slow if what in FILLS_MEMORY else ())
        for what in HOSTILE
    ],
)
def test_hostile_tokenizer_is_an_error_with_fix(what: str) -> None:
    def use() -> None:
        tokenizer = _changed(**HOSTILE[what])
        tokenizer.decode(tokenizer.encode(TEXT))

    with pytest.raises(CheckpointError, match=r"^there/tokenizer\.json (is not|cannot)") as caught:
        use()
    assert caught.value.fix == "Put the model's tokenizer.json there"


CUTS_OR_PADS = {
    "padding to 8": _padding(strategy={"Fixed": 8}),
    "padding to 10^12": _padding(strategy={"Fixed": 10**12}),
    "padding to a multiple of 2^63": _padding(strategy="BatchLongest", pad_to_multiple_of=2**63),
    "truncation to 3": {"truncation": CUT | {"stride": 0}},
    "a stride of the length": {"truncation": CUT},
}


@pytest.mark.parametrize("what", CUTS_OR_PADS)
def test_tokenizer_saved_with_limits_neither_cuts_nor_pads(what: str) -> None:
    assert _changed(**CUTS_OR_PADS[what]).encode("two words") == [*b"two words"]


def test_tokenizer_with_gaps_counts_up_to_largest_id() -> None:
    gaps = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 90}, unk_token="a"))
    assert isolated_tokenizer(gaps).vocab_size == 91


def test_tokenizer_without_tokens_is_refused() -> None:
    with pytest.raises(CheckpointError, match="is not a tokenizer: it has no tokens"):
        isolated_tokenizer(tokenizers.Tokenizer(models.BPE()))


def _with_tokens(*texts: str) -> tokenizers.Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(list(texts))
    return tokenizer


@pytest.mark.parametrize(
    ("tokens", "files", "begin", "end"),
    [
        ((), {}, None, 256),  # <|endoftext|>, a usual end token
        (("<s>",), {"tokenizer_config.json": {"bos_token": "<s>", "eos_token": "a"}}, 257, 97),
        (
            ("<|im_end|>",),
            {"tokenizer_config.json": {"eos_token": {"content": "<|im_end|>"}}},
            None,
            257,
        ),
        (
            ("<x>",),
            {"special_tokens_map.json": {"eos_token": "<x>"}, "generation_config.json": {}},
            None,
            257,
        ),
        ((), {"generation_config.json": {"bos_token_id": 1, "eos_token_id": [98, 99]}}, 1, 98),
        ((), {"tokenizer_config.json": {"eos_token": "none of its tokens"}}, None, 256),
        (
            (),
            {
                "tokenizer_config.json": ["no object"],
                "generation_config.json": {"eos_token_id": "98"},
            },
            None,
            256,
        ),
    ],
)
def test_special_tokens_equal_those_of_files(
    tokens: tuple[str, ...], files: dict[str, Any], begin: int | None, end: int
) -> None:
    companions = {name: json.dumps(document).encode() for name, document in files.items()}
    tokenizer = Tokenizer(_with_tokens(*tokens).to_str().encode(), "there", companions)
    assert (tokenizer.begin_id, tokenizer.end_id) == (begin, end)


def test_decode_after_other_tokens_keeps_leading_space() -> None:
    strips = _changed(
        decoder={"type": "Sequence", "decoders": [{"type": "ByteLevel", **_BYTE_LEVEL}, _STRIP]}
    )
    assert strips.decode([*b" fox"]) == "fox"
    assert strips.decode_after([*b"red"], [*b" fox"]) == " fox"


def test_tokenizer_answers_equal_library() -> None:
    tokenizer = isolated_tokenizer()
    library = byte_tokenizer()
    assert tokenizer.vocab_size == library.get_vocab_size()
    for text in ("", "def f():\n", "naïve 猫\u2028", TEXT * 1000):
        ids = tokenizer.encode(text)
        assert ids == library.encode(text).ids
        assert tokenizer.decode(ids) == library.decode(ids) == text
    with pytest.raises(CheckpointError, match="cannot tokenise a text"):
        tokenizer.encode("\udcff")
    assert tokenizer.encode("two words") == [*b"two words"]


def test_endless_tokenizer_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = isolated_tokenizer()
    os.kill(tokenizer._child.pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    for text in ("a", "a" * 1_000_000):  # a request that does not fit into the pipe
        with pytest.raises(CheckpointError, match="cannot tokenise a text"):
            tokenizer.encode(text)
    assert tokenizer._child.poll() is not None


@pytest.mark.skipif(sys.platform == "win32", reason="there only the caller ends it")
def test_endless_tokenizer_ends_itself_without_a_parent() -> None:
    slow = {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": "z"}
    of_file = {
        **json.loads(byte_tokenizer().to_str()),
        "normalizer": _sequence(slow, 2000, "normalizers"),
    }
    # as the parent may have set it
    ignored = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)"
    run = f"{ignored}; from aftermath.model import tokenizer_process as it; it.PATIENCE = 1; it._main()"
    with subprocess.Popen(
        [sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        assert child.stdin is not None
        for message in (of_file, {"text": "x" * 21 + "c"}):
            data = json.dumps(message).encode()
            child.stdin.write(LENGTH.pack(len(data)) + data)
        child.stdin.close()
        assert child.wait(60) == -signal.SIGALRM


def test_tokenizer_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = isolated_tokenizer()
    monkeypatch.setattr(module, "_MOST_ANSWER", 1000)
    with pytest.raises(CheckpointError, match="is too long"):
        tokenizer.encode(TEXT * 100)


def test_tokenizer_process_ends_with_its_object() -> None:
    tokenizer = isolated_tokenizer()
    process = psutil.Process(tokenizer._child.pid)
    prompt = Prompt("def", 8, tokenizer)
    prompt.check(257)
    del tokenizer, prompt
    gc.collect()
    assert not process.is_running()


def test_tokenizer_answers_are_separate_per_thread() -> None:
    tokenizer = isolated_tokenizer()
    wrong = []

    def ask(text: str) -> None:
        for _ in range(150):
            if tokenizer.encode(text) != [*text.encode()]:
                wrong.append(text)

    threads = [
        threading.Thread(target=ask, args=(letter * (100 * (place + 1)),))
        for place, letter in enumerate("abc")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
