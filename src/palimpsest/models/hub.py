"""A Hugging Face repository as a folder on disk, without its code and its pickles.

The small files come first and are vetted, so that a repository that will be refused is refused
before its weights are downloaded.
"""

from pathlib import Path

from palimpsest.errors import ModelError
from palimpsest.models.inspect_folder import check_tokenizer, file_in, read_config

SMALL = ["*.json", "*.txt", "tokenizer.model", "chat_template.jinja"]
WEIGHTS = ["model.safetensors", "model-*.safetensors", "adapter_model.safetensors"]
IGNORED = ["*/*", "*.py"]  # subfolders hold other formats of the same model


def snapshot(name: str, weights: bool) -> tuple[Path, str]:
    """Return the folder of a hub model and its commit; downloads what is not there yet."""
    folder = _download(name, None, SMALL)
    # Later downloads take this commit, whatever the branch says by then.
    commit = folder.name
    if file_in(folder, "adapter_config.json") is None:
        read_config(folder)
    check_tokenizer(folder)
    return (_download(name, commit, WEIGHTS) if weights else folder), commit


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub

    try:
        path = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED
        )
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise ModelError(
            f"{name}: is not a folder here and cannot be downloaded from the Hugging Face hub "
            f"({type(error).__name__}: {first}); check the spelling and the network, log in for "
            "gated models, or download it elsewhere and give the folder"
        ) from error
    return Path(path)
