"""The options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder; resumed if it exists.")]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help="One more method, as name or package.module:Class; repeatable."),
]
Track = Annotated[
    str | None, typer.Option("--track", help="tensorboard, wandb, mlflow or trackio; else none.")
]
Fork = Annotated[bool, typer.Option("--fork", help="Start a new run where terms differ.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "--preview", help="Say what would be done, and stop.")
]
RoundTrip = Annotated[str | None, typer.Option(help="survivors or all.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
