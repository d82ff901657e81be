"""A Hugging Face repository as a folder on disk, without its code and its pickles.

The small files come first and are vetted, so that a repository that will be refused is refused
before its weights are downloaded.
"""

from pathlib import Path

from palimpsest.errors import ModelError
from palimpsest.models.inspect_folder import (
    INDEX_LIMIT,
    check_tokenizer,
    file_in,
    read_config,
    read_json,
)

SMALL = ["*.json", "*.txt", "tokenizer.model", "chat_template.jinja"]
IGNORED = ["*/*", "*.py"]  # subfolders hold other formats of the same model


def snapshot(name: str, revision: str | None, weights: bool) -> tuple[Path, str]:
    """Return the folder of a hub model and its commit; downloads what is not there yet."""
    folder = _download(name, revision, SMALL)
    # Later downloads take this commit, whatever the branch says by then.
    commit = folder.name
    adapter = file_in(folder, "adapter_config.json") is not None
    if not adapter:
        read_config(folder)
    check_tokenizer(folder)
    if weights:
        folder = _download(name, commit, _weight_files(folder, adapter))
    return folder, commit


def _weight_files(folder: Path, adapter: bool) -> list[str]:
    if adapter:
        return ["adapter_model.safetensors"]
    index = read_json(folder, "model.safetensors.index.json", INDEX_LIMIT)
    shards = index.get("weight_map") if index else None
    named = shards.values() if isinstance(shards, dict) else ()
    # Plain names only: a pattern with a star or a slash would fetch more than a shard.
    return ["model.safetensors", *sorted({n for n in map(str, named) if not set(n) & set("*?[]/")})]


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    small = patterns is SMALL
    if small:
        disable_progress_bars()
    try:
        path = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED
        )
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        at = f" at revision {revision}" if revision else ""
        raise ModelError(
            f"{name}{at}: is not a folder here and cannot be downloaded from the Hugging Face hub "
            f"({type(error).__name__}: {first}); expected a folder, a pocket model or a reachable "
            "id; check the spelling and the network, log in for gated models, or download it "
            "elsewhere and give the folder"
        ) from error
    finally:
        if small:
            enable_progress_bars()
    return Path(path)
