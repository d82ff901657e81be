"""The audit of a user's own models: base, injected, references, candidates and facts in, a verdict
out.

``palimpsest.audit`` is this package and, called, its function ``audit``.
"""

import sys
from types import ModuleType
from typing import Any

from palimpsest.audit.request import AuditRequest, make_request, request_from_yaml
from palimpsest.audit.run import AuditResult, audit, run_audit

__all__ = ["AuditRequest", "AuditResult", "audit", "make_request", "request_from_yaml", "run_audit"]


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> AuditResult:
        return audit(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
