"""The CPU engine: shared beginnings once, scored positions only, several small models at a time.

Other packages import from here, never from the modules inside; ``docs/architecture.md`` says what
it buys.
"""

from palimpsest.models.fast.forward import HEAD, Forward, Scored, StackedNet, supports, watched
from palimpsest.models.fast.tree import Tree, tree_of

__all__ = ["HEAD", "Forward", "Scored", "StackedNet", "Tree", "supports", "tree_of", "watched"]
