"""Test the report of the local files and the addresses that a run uses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aftermath.base.allowed_locations import RunAccess
from aftermath.base.errors import Unsuitable
from aftermath.config.chain_values import location_of
from aftermath.config.data_sources import DataLocationChoice
from aftermath.config.document import RunConfig, parse_as
from aftermath.data.source import WrongTokens
from aftermath.optim.run_schema import agreed_schema
from aftermath.rules.model import Checkpoint, DataLocation, Recorded, marked
from aftermath.rules.state import CheckpointKind
from aftermath.sim.setup import CONFIG, RULES
from aftermath.train import requirements
from aftermath.train.access import access_report
from faulty_web import serving
from rules import builders

HUB = Checkpoint(CheckpointKind.HUB, "me/model", "")
EARLIER = Recorded(Checkpoint(CheckpointKind.HUB, "me/earlier", ""), (bytes(32),), 0, 1)


def data(written: object) -> DataLocation:
    return location_of(DataLocationChoice.model_validate(written))


def http(files: object) -> dict[str, object]:
    return {"Http": {"location": files}}


def lines(
    access: RunAccess, place: DataLocation, checkpoint: Checkpoint = HUB, *earlier: Recorded
) -> list[str]:
    model = builders.model(data_location=place, checkpoint=checkpoint, earlier=earlier)
    return access_report(model, access).lines()


MODEL = "contacts https://huggingface.co/me/model (model, without a token)"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (data("Dummy"), []),
        (data({"Local": "~/tokens"}), ["reads /mine (data)"]),
        (
            data(http({"SingleUrl": "https://u:p@h.example/a.bin?key=x"})),
            ["contacts https://h.example/a.bin (data)"],
        ),
        (
            data(http({"NumberedFiles": {"url_template": "https://h/{}.bin", "num_files": 8}})),
            ["contacts https://h/{}.bin, 8 files (data)"],
        ),
        (
            data(http({"Gcp": {"bucket_name": "bucket"}})),
            ["contacts https://storage.googleapis.com/bucket (data)"],
        ),
        (data({"Server": "h.example:9300"}), ["contacts h.example:9300 (data)"]),
    ],
)
def test_access_report_names_places_on_chain(
    monkeypatch: pytest.MonkeyPatch, place: DataLocation, expected: list[str]
) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert sorted(lines(RunAccess(data=Path("/mine")), place)) == sorted([MODEL, *expected])


def test_access_report_marks_repository_read_with_token() -> None:
    report_lines = lines(RunAccess(token_repositories=("me/model",)), data("Dummy"), HUB, EARLIER)
    assert [line.partition("/me/")[2] for line in report_lines] == [
        "model (model, with this machine's token)",
        "earlier (model, without a token)",
    ]


def test_access_report_omits_refused_local_paths() -> None:
    local = Checkpoint(CheckpointKind.LOCAL, "~/private-model", "")
    assert lines(RunAccess(), data({"Local": "~/.ssh"}), local) == []


def test_access_report_names_places_of_mixture_document() -> None:
    with serving() as web:
        inner = {"Http": {"location": {"SingleUrl": "https://h.example/a.bin"}}}
        web.files["/m.json"] = json.dumps({"providers": [inner, {"Local": "books"}]}).encode()
        access = RunAccess(private_network=True, root=Path("/mine"), data=Path("/elsewhere"))
        report_lines = lines(access, data({"WeightedHttp": f"{web.url}/m.json"}))
    assert report_lines == [
        "reads /mine/books (data)",
        f"contacts {web.url}/m.json (the document of the data)",
        MODEL,
        "contacts https://h.example/a.bin (data)",
    ]


def test_mixture_document_without_hash_on_chain_is_refused() -> None:
    with serving() as web:
        optimizer = parse_as(RULES, "tiny", RunConfig).llm.optimizer.settings
        model = builders.model(
            optimizer=optimizer, data_location=data({"WeightedHttp": f"{web.url}/m.json"})
        )
        schema = agreed_schema(CONFIG.to_hf(), 3, optimizer)
        with pytest.raises(Unsuitable, match=r"the run has no hash[\s\S]*update-config"):
            requirements.data_of(model, schema, RunAccess(private_network=True))
        assert web.requests == []


@pytest.mark.parametrize(
    ("files_hash", "advice"), [("", "Ask its owner to correct"), ("0" * 64, "--data-path DIR")]
)
def test_unfit_tokens_fix_depends_on_hash_on_chain(
    tmp_path: Path, files_hash: str, advice: str
) -> None:
    np.full(4096, 300, "<u2").tofile(tmp_path / "a.bin")
    optimizer = parse_as(RULES, "tiny", RunConfig).llm.optimizer.settings
    place = replace(
        data({"Local": str(tmp_path)}), secondary=marked("", files_hash) if files_hash else ""
    )
    model = builders.model(optimizer=optimizer, data_location=place, max_seq_len=16)
    schema = agreed_schema(CONFIG.to_hf() | {"vocab_size": 257}, 3, optimizer)
    with pytest.raises(WrongTokens, match="outside the vocabulary") as caught:
        requirements.data_of(model, schema, RunAccess(data=tmp_path))
    assert advice in caught.value.fix
