"""The examination of a bundle in a process of its own, with bounded time and memory.

Tables are read by a native library, which allocates what a table asks for and ends the process on
some that contradict themselves. A hostile bundle therefore breaks this process only, and fails.
"""

import json
import os
import subprocess
import sys

from palimpsest.certificate.verify import Verification, broken, examine

SECONDS = 1_800
"""Longest examination; the largest runs take minutes."""
MEMORY = 8 * 2**30
"""Address space of the process, in bytes, where the system can bound it."""


def examine_apart(data: bytes, public: bytes | None = None) -> Verification:
    """Return what ``examine`` returns, or a failure when it crashes or takes too long."""
    # -P and a path without empty entries: a module beside the bundle must not be run.
    command = [sys.executable, "-P", "-m", __name__, "" if public is None else public.hex()]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if os.path.isabs(path)),
        # Every thread of a numeric library takes address space, and one is enough.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    try:
        process = subprocess.run(
            command, input=data, env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return broken(f"the examination was not done within {SECONDS} seconds")
    try:
        return Verification.from_json(json.loads(process.stdout))
    except (ValueError, KeyError, TypeError, AttributeError):
        errors = process.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        return broken(
            f"the examination broke off (exit code {process.returncode}; {errors}); not a valid "
            "bundle, or too little memory"
        )


def main() -> None:
    """Examine the bundle on the standard input and print the verification as JSON."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, OSError, ValueError):
        pass  # not supported on this system: the time limit and the tables' own bounds remain
    public = bytes.fromhex(sys.argv[1]) if sys.argv[1] else None
    sys.stdout.write(json.dumps(examine(sys.stdin.buffer.read(), public).to_json()))


if __name__ == "__main__":
    main()
