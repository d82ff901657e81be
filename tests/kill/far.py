"""A folder reached through sshfs over a slow link: a network file system without a network.

Run as a program, it is the link: an sftp server, whose every answer takes a while to arrive.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DELAY = 0.002
"""Seconds that each answer of the server takes."""
SERVERS = [f"/usr/{place}/sftp-server" for place in ("lib/openssh", "libexec/openssh", "lib/ssh")]


@contextmanager
def mounted(far: Path, *near: Path) -> Iterator[str]:
    """Mount a folder at other places, as other machines would; yield why not, or nothing.

    Each mount has its own cache, and locks that the others do not see.
    """
    server = next(filter(os.path.exists, SERVERS), None)
    if server is None:
        yield "no sftp server is installed"
        return
    link = f"ssh_command={sys.executable} -S {__file__} {server}"
    done: list[Path] = []
    problem = ""
    try:
        far.mkdir()
        for place in near:
            place.mkdir()
            command = ["sshfs", "-o", link, f"far:{far}", str(place)]
            # Its processes go on in the background, and must hold no pipe of ours.
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.run(command, check=True, timeout=60, **quiet)
            done.append(place)
    except (OSError, subprocess.SubprocessError) as error:
        problem = f"sshfs cannot mount a folder here ({error})"
    try:
        yield problem
    finally:
        for place in done:
            subprocess.run(["fusermount3", "-u", "-z", str(place)], check=True)


def main(server: str) -> None:
    process = subprocess.Popen([server], stdout=subprocess.PIPE)
    assert process.stdout is not None
    while data := os.read(process.stdout.fileno(), 1 << 16):
        time.sleep(DELAY)
        while data:
            data = data[os.write(1, data) :]


if __name__ == "__main__":
    main(sys.argv[1])
