"""`tandem pull`: the files of a model from a hub, as `huggingface_hub` fetches them."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from tandem.client.cli.models_at_hand import RECORD, models_folder, write_record
from tandem.client.cli.terminal import CommandError, Stopped, errors, is_terminal, output, reporting_errors

# What a tokenizer service and a worker read beside the weights.
OTHER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.json",
    "tekken.json",
    "*.tiktoken",
)
SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,200})?")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository, as the hub lists it."""

    name: str
    size: int | None
    sha256: str | None  # of large files
    blob: str | None  # git's sha1 of the others


def pull(
    name: Annotated[str, typer.Argument(help="ORGANISATION/NAME, or ORGANISATION/NAME@REVISION.")],
    gguf: Annotated[
        str | None,
        typer.Option("--gguf", help="Fetch the GGUF file whose name contains this, such as Q4_K_M, and nothing else."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="The folder to fetch into; default: where --model finds it by name.")
    ] = None,
    without_weights: Annotated[
        bool,
        typer.Option("--without-weights", help="Fetch what a tokenizer service reads, and no weights; only with --to."),
    ] = False,
) -> None:
    """Fetch a model from a hub (HF_ENDPOINT, HF_TOKEN): its safetensors, else one GGUF file, else
    pytorch_model.bin, and its tokenizer.

    What was fetched before is not fetched again, and a download that was interrupted goes on where it stopped."""
    with reporting_errors():
        if not _NAME.fullmatch(name):
            raise CommandError(f"{name!r} is not ORGANISATION/NAME or ORGANISATION/NAME@REVISION", exit_code=2)
        if without_weights and to is None:
            raise CommandError("--without-weights wants --to: a folder of models has their weights", exit_code=2)
        repository, _, revision = name.partition("@")
        folder, shown = _pull(repository, revision or None, gguf, to, without_weights)
        errors.print(Text(f"{shown} is in {folder}", style="dim"))
        output().print(Text(str(folder) if to is not None else shown))


def _pull(
    repository: str, revision: str | None, gguf: str | None, to: Path | None, without_weights: bool
) -> tuple[Path, str]:
    """Returns the folder, and the name that `--model` takes. Raises CommandError."""
    if not is_terminal(sys.stderr):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub
        from huggingface_hub import errors as hub_errors
    except ImportError:
        raise CommandError(
            "fetching models needs huggingface_hub: pip install 'tandem-llm[pull]'", exit_code=2
        ) from None
    where = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        about = huggingface_hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
        listed = [_file(each) for each in about.siblings or ()]
        wanted, variant = choose(listed, gguf, without_weights)
        shown = repository + (f"@{revision.replace('/', '-')}" if revision else "") + variant
        folder = models_folder().joinpath(*shown.split("/")) if to is None else to
        (folder / RECORD).unlink(missing_ok=True)
        huggingface_hub.snapshot_download(
            repository,
            revision=about.sha,
            local_dir=folder,
            allow_patterns=[_literal(each.name) for each in wanted],
        )
    except hub_errors.RevisionNotFoundError:
        raise CommandError(f"{repository} has no revision {revision!r} at {where}") from None
    except hub_errors.GatedRepoError:
        raise CommandError(
            f"{repository} is given only to those whom its owner lets in: ask there, and set HF_TOKEN"
        ) from None
    except hub_errors.RepositoryNotFoundError:
        raise CommandError(f"there is no model {repository} at {where}, or HF_TOKEN does not open it") from None
    except KeyboardInterrupt:
        raise Stopped(signal.SIGINT) from None  # what came stays, and the next call goes on from there
    except CommandError:
        raise
    except Exception as error:  # of its HTTP library too, which is another one in other versions
        raise CommandError(f"{where} did not give {repository}: {_why(error)}") from None
    for file in wanted:
        check(folder / file.name, file)
    write_record(
        folder,
        {
            "repository": repository,
            "revision": about.sha,
            "files": {file.name: file.sha256 or file.blob for file in wanted},
        },
    )
    return folder, shown


def choose(files: Sequence[HubFile], gguf: str | None, without_weights: bool = False) -> tuple[list[HubFile], str]:
    """Returns the files to fetch, and what tells them apart in the folder's name. Raises CommandError.

    A GGUF file is fetched in any case: its vocabulary is inside."""
    at_top = [file for file in files if "/" not in file.name or file.name in OTHER_FILES]
    models: dict[str, list[HubFile]] = {}  # the parts of each GGUF
    for file in at_top:
        if file.name.endswith(".gguf"):
            models.setdefault(_PART.sub("", file.name).removesuffix(".gguf"), []).append(file)
    names = ", ".join(sorted(models))
    if gguf is not None:
        matching = [name for name in models if gguf.lower() in name.lower()]
        exact = [name for name in models if name == gguf.removesuffix(".gguf")]
        if len(exact or matching) != 1:
            what = "fits several" if matching else "fits none"
            raise CommandError(f"--gguf {gguf} {what} of the GGUF files: {names or 'there are none'}")
        (name,) = exact or matching
        return models[name], f"+{name}"
    for weights in (_fitting(at_top, SAFETENSORS), [] if models else _fitting(at_top, PICKLED)):
        if any(not file.name.endswith(".json") for file in weights):
            return [*([] if without_weights else weights), *_fitting(at_top, OTHER_FILES)], ""
    if len(models) == 1:
        return next(iter(models.values())), ""
    if models:
        raise CommandError(f"it has several GGUF files; choose one by --gguf: {names}")
    raise CommandError(
        "it has neither model.safetensors nor a GGUF file nor pytorch_model.bin; other weights are not fetched"
    )


def _fitting(files: Sequence[HubFile], patterns: Sequence[str]) -> list[HubFile]:
    return [file for file in files if any(fnmatch(file.name, pattern) for pattern in patterns)]


def check(path: Path, file: HubFile) -> None:
    """Compares a file with the hub's checksum. Removes one that differs, and raises CommandError."""
    try:
        size = path.stat().st_size
        sha256, blob = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        digest, expected = (sha256, file.sha256) if file.sha256 else (blob, file.blob)
        with path.open("rb") as content:
            while part := content.read(_BLOCK):
                digest.update(part)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    if expected is not None and digest.hexdigest() != expected:
        path.unlink()
        raise CommandError(f"{file.name} is damaged: its checksum is not the hub's. It was removed; pull again")


def _file(sibling: Any) -> HubFile:
    lfs = sibling.lfs
    sha256 = lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None)
    return HubFile(sibling.rfilename, sibling.size, sha256, sibling.blob_id)


def _literal(name: str) -> str:
    """Returns the pattern that only this name fits."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def _why(error: Exception) -> str:
    """Returns the first line of an error, without what an address may carry."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"(https?://[^\s?'\"]+)\?\S*", r"\1", lines[0])
