"""The plan of a study, shown: its schema for editors, or a whole plan as a file to start from."""

from typing import Annotated

from typer import Option

from palimpsest.cli.options import AsJson
from palimpsest.cli.output import answer
from palimpsest.errors import InputError


def plan(
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON schema of a plan file.")
    ] = False,
    show: Annotated[
        str | None, Option(help="Print a preset, or a plan file with its preset filled in.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the keys of a plan file (--schema), or a complete plan as YAML (--show PRESET)."""
    if schema == (show is not None):
        raise InputError("plan: expected one of --schema and --show PRESET; see docs/plan.md")
    if show is None:
        from palimpsest.plan_keys import plan_schema

        answer(plan_schema())
        return
    import yaml

    from palimpsest.cli.studies import named_plan

    values = named_plan(show).as_dict()
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None)
    answer(values if as_json else text.rstrip())
