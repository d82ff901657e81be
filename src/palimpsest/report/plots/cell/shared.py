"""How every figure of a cell lists its candidates and names their methods."""

from palimpsest.report.palette import in_order
from palimpsest.study.results import CellResult

Legend = tuple[tuple[str, str, bool], ...]


def groups(cell: CellResult) -> list[tuple[str, tuple[str, ...]]]:
    """Candidates by method in the palette's order, or all in one group when methods have one."""
    methods = methods_of(cell)
    if len(methods) > 9 or len(cell.candidates) < 2 * len(methods):
        ordered = tuple(name for method in methods for name in cell.of_method(method))
        return [("candidates", ordered)]
    return [(method, cell.of_method(method)) for method in methods]


def listed(cell: CellResult) -> list[str]:
    """All candidates in the order of their groups."""
    return [name for _, group in groups(cell) for name in group]


def style_of(cell: CellResult, group: str) -> str:
    """The palette's name of a group, if it is a method."""
    return group if group in cell.methods.values() else ""


def methods_of(cell: CellResult) -> tuple[str, ...]:
    """The methods of the candidates, in the palette's order."""
    return in_order(cell.methods[name] for name in cell.candidates)


def method_legend(cell: CellResult) -> Legend:
    """A marker for every method."""
    return tuple((method, method, False) for method in methods_of(cell))


def hollow_legend(cell: CellResult, hollow: str = "hollow: excluded by the screen") -> Legend:
    """A marker for every method, and what a hollow one means."""
    return (*method_legend(cell), (methods_of(cell)[0], hollow, True))
