"""`tandem pull` from a hub on loopback, with the real command and the real library."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tandem.client.cli.models_at_hand import pulled
from tandem.client.cli.services import find_model
from tandem.client.cli.terminal import CommandError
from tests import prepared
from tests.client.hub import COMMIT, Hub

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub, of the extra pull")

TOKEN = "hf_a-token-that-nobody-may-see"
SAFE = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "tokenizer.json": b"{ }",
    "tokenizer_config.json": b'{"chat_template": "x"}',
    "model-00001-of-00002.safetensors": b"one" * 1000,
    "model-00002-of-00002.safetensors": b"two" * 1000,
    "model.safetensors.index.json": b'{"weight_map": {}}',
}
UNWANTED = {
    "README.md": b"#", "pytorch_model.bin": b"a pickle", "onnx/model.onnx": b"x", "training_args.bin": b"x",
    "consolidated.safetensors": b"twice", ".gitattributes": b"",
}  # fmt: skip
GGUFS = {"m-Q4_K_M.gguf": b"four", "m-Q8_0-00001-of-00002.gguf": b"eight", "m-Q8_0-00002-of-00002.gguf": b"more"}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def pull(hub: Hub, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command, with a cache of its own."""
    home = Path(os.environ["TANDEM_MODELS"]).parent
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(home / "hf"), **more}
    environment.pop("HF_HUB_OFFLINE", None)
    return prepared.run("tandem.client.cli", "pull", *arguments, environment=environment)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


def test_what_a_worker_needs_is_fetched_once_and_found_by_name(models: Path) -> None:
    with Hub({"org/tiny": {**SAFE, **UNWANTED}}) as hub:
        done = pull(hub, "org/tiny")
        assert (done.returncode, done.stdout) == (0, "org/tiny\n"), done.stderr
        assert files_in(models / "org" / "tiny") == SAFE
        assert hub.fetched() == set(SAFE)
        folder, tokenizer = find_model(Path("org/tiny"), None)
        assert folder == tokenizer == models / "org" / "tiny" == pulled("org/tiny")
        hub.asked.clear()
        assert pull(hub, "org/tiny").returncode == 0
        assert not hub.fetched()
    record = json.loads((models / "org" / "tiny" / ".tandem-pull.json").read_text())
    assert (record["repository"], record["revision"]) == ("org/tiny", COMMIT)


def test_a_template_for_tools_is_fetched_from_its_folder(models: Path) -> None:
    folder = "additional_chat_templates"
    with Hub({"org/tiny": {**SAFE, f"{folder}/tool_use.jinja": b"T", f"{folder}/rag.jinja": b"R"}}) as hub:
        done = pull(hub, "org/tiny")
        assert done.returncode == 0, done.stderr
    assert files_in(models / "org" / "tiny" / folder) == {"tool_use.jinja": b"T"}


def test_where_there_are_no_safetensors_pytorch_s_files_are_fetched(models: Path) -> None:
    old = {name.replace("model", "pytorch_model").replace(".safetensors", ".bin"): content
           for name, content in SAFE.items() if ".safetensors" in name}  # fmt: skip
    assert set(old) == {"pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin",
                        "pytorch_model.bin.index.json"}  # fmt: skip
    small = {name: content for name, content in SAFE.items() if ".safetensors" not in name}
    single = {**small, "pytorch_model.bin": b"one"}
    others = {"training_args.bin": b"x", "optimizer.bin": b"x", "flax_model.msgpack": b"x"}
    both = {**SAFE, **old, **others}
    with Hub({"org/old": {**small, **old, **others}, "org/one": {**single, **others}, "org/both": both}) as hub:
        for name, wanted in (("old", {**small, **old}), ("one", single), ("both", SAFE)):
            done = pull(hub, f"org/{name}")
            assert done.returncode == 0, done.stderr
            assert files_in(models / "org" / name) == wanted


def test_a_tokenizer_service_needs_no_weights(models: Path, tmp_path: Path) -> None:
    with Hub({"org/tiny": {**SAFE, **UNWANTED}}) as hub:
        refused = pull(hub, "org/tiny", "--without-weights")
        assert refused.returncode == 2 and "--to" in refused.stderr
        assert pull(hub, "org/tiny", "--without-weights", "--to", str(tmp_path / "here")).returncode == 0
        assert hub.fetched() == {name for name in SAFE if not name.startswith("model")}


def test_a_download_that_broke_off_goes_on_where_it_stopped(models: Path) -> None:
    name, large = "model.safetensors", os.urandom(50_000_000)  # the library fetches 10 MB at a time
    with Hub({"org/tiny": {"config.json": b"{}", name: large}}, cut={name: 30_000_000}) as hub:
        first = pull(hub, "org/tiny")
        if first.returncode:
            assert pulled("org/tiny") is None
            assert pull(hub, "org/tiny").returncode == 0
        ranges = [asked for method, path, asked in hub.asked if path.endswith(name) and method == "GET"]
    assert len(ranges) >= 2
    assert ranges[0] == "" and int(ranges[-1].removeprefix("bytes=").removesuffix("-")) >= 20_000_000
    assert (models / "org" / "tiny" / name).read_bytes() == large


def test_a_damaged_file_is_removed_and_said(models: Path) -> None:
    with Hub({"org/tiny": SAFE}, damaged={"model-00002-of-00002.safetensors"}) as hub:
        done = pull(hub, "org/tiny")
        assert done.returncode == 1
        assert "model-00002-of-00002.safetensors is damaged" in done.stderr
        assert pulled("org/tiny") is None
        hub.damaged.clear()
        assert pull(hub, "org/tiny").returncode == 0
    assert files_in(models / "org" / "tiny") == SAFE


def test_one_gguf_file_is_chosen(models: Path, tmp_path: Path) -> None:
    with Hub({"org/m": {**GGUFS, **UNWANTED}}) as hub:
        several = pull(hub, "org/m")
        assert several.returncode == 1
        assert "choose one by --gguf: m-Q4_K_M, m-Q8_0" in several.stderr
        for wish in ("Q5", "m-"):
            assert pull(hub, "org/m", "--gguf", wish).returncode == 1
        assert pull(hub, "org/m", "--gguf", "q8_0").stdout == "org/m+m-Q8_0\n"
        eight = find_model(Path("org/m+m-Q8_0"), None)[0]
        assert set(files_in(eight)) == {name for name in GGUFS if "Q8_0" in name}
        done = pull(hub, "org/m", "--gguf", "m-Q4_K_M.gguf", "--to", str(tmp_path / "here"))
        assert done.stdout == f"{tmp_path / 'here'}\n"
        assert set(files_in(tmp_path / "here")) == {"m-Q4_K_M.gguf"}


def test_a_revision_has_a_folder_of_its_own(models: Path) -> None:
    with Hub({"org/tiny": SAFE}) as hub:
        assert pull(hub, "org/tiny@v1").stdout == "org/tiny@v1\n"
        missing = pull(hub, "org/tiny@v2")
    assert pulled("org/tiny@v1") is not None
    assert pulled("org/tiny") is None
    assert missing.returncode == 1
    assert "org/tiny has no revision 'v2'" in missing.stderr


def test_what_is_wrong_is_one_line_without_the_token(models: Path) -> None:
    others = {name: content for name, content in UNWANTED.items() if name != "pytorch_model.bin"}
    with Hub({"org/tiny": SAFE, "org/others": others}, token=TOKEN) as hub:
        for arguments, words, token in (
            (["tiny"], "is not ORGANISATION/NAME", ""),
            (["../etc/passwd"], "is not ORGANISATION/NAME", ""),
            (["org/none"], "there is no model org/none", TOKEN),
            (["org/tiny"], "HF_TOKEN does not open it", "hf_another"),
            (["org/others"], "neither model.safetensors nor a GGUF file nor pytorch_model.bin", TOKEN),
        ):
            done = pull(hub, *arguments, HF_TOKEN=token)
            assert done.returncode
            assert words in done.stderr, done.stderr
            assert done.stderr.count("\n") == 1
            assert not token or token not in done.stderr + done.stdout
        assert pull(hub, "org/tiny", HF_TOKEN=TOKEN).returncode == 0
        address = hub.address
    gone = pull(hub_at(address), "org/tiny")
    assert gone.returncode == 1
    assert f"{address} did not give org/tiny" in gone.stderr


class hub_at:  # noqa: N801
    """A hub that is not there any more."""

    def __init__(self, address: str) -> None:
        self.address = address


def test_a_name_that_was_not_pulled_says_how(models: Path) -> None:
    for name in ("org/none", "../x", "a/b/c"):
        with pytest.raises(CommandError) as caught:
            find_model(Path(name), None)
        assert ("tandem pull org/none" in str(caught.value)) == (name == "org/none")
