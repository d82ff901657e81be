"""A quantized GGUF file as the checkpoint it stands for, in float32."""

import contextlib
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from palimpsest.models.device import foreign
from palimpsest_trials.models.encoders import by_rank, by_score, check_ids

FILE = "model.gguf"


def convert(weights: bytes, packages: Path, out: Path) -> None:
    """Write config, weights and tokenizer; needs gguf and accelerate (``make trials``)."""
    with TemporaryDirectory() as spare:
        folder = Path(spare)
        (folder / FILE).write_bytes(weights)
        # The conversion draws its own bar, which no setting of transformers turns off.
        silent = contextlib.redirect_stderr(io.StringIO())
        with foreign(f"{FILE}: its weights", "what transformers can convert"), silent:
            gemma = _write_model(folder, out)
            tokenizer = _load_tokenizer(folder)
            if gemma:  # it was trained with its first token before every text
                _start_texts(tokenizer)
            tokenizer.save_pretrained(out)
            scores = _scores(folder / FILE) if gemma else []
    core = json.loads((out / "tokenizer.json").read_text("utf-8"))["model"]
    if gemma:
        plain = by_score(core["vocab"], scores, "", core["vocab"]["<0x00>"])
        check_ids(out, plain, [tokenizer.bos_token_id])
    else:
        check_ids(out, by_rank(core["vocab"], [(left, right) for left, right in core["merges"]]))


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), gguf_file=FILE, local_files_only=True)


def _start_texts(tokenizer: Any) -> None:
    """Have every text begin with the first token."""
    from tokenizers.processors import TemplateProcessing

    first = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, tokenizer.bos_token_id)]
    )


def _write_model(folder: Path, out: Path) -> bool:
    """Write config and weights; return whether it is a Gemma."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(folder), gguf_file=FILE, local_files_only=True, dtype="float32"
    )
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    # Without the place of the file, and that its weights were quantized.
    kept = {k: v for k, v in config.items() if k[0] != "_" and k != "quantization_config"}
    (out / "config.json").write_text(json.dumps(kept, indent=1, sort_keys=True))
    # Tied weights share memory, which safetensors refuses; parameters name each of them once.
    state = {name: value.detach().contiguous() for name, value in model.named_parameters()}
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    return str(model.config.model_type).startswith("gemma")


def _scores(file: Path) -> list[float]:
    """Return the score of every piece of a GGUF file's vocabulary."""
    from gguf import GGUFReader

    return [float(score) for score in GGUFReader(file).fields["tokenizer.ggml.scores"].contents()]
