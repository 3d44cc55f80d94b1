"""An image of empty folders, over which containers get this machine's files, read-only.

So a container needs no registry, and has the driver's interpreter, libraries and modules: those
of its virtual environment and those of a source tree alike. The engine has to be on this machine.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from docker import DockerClient
from docker.errors import ImageNotFound
from docker.types import Mount

REPOSITORY, TAG = "raytwin-host", "1"
SCRATCH = "/raytwin"
"""The folder that processes in a container may write to; files of spilled objects are there."""
_FOLDERS = ("usr", "etc", "root", "tmp", "proc", "dev", "sys", "run", "var", SCRATCH[1:])
_WRITABLE = ("tmp", SCRATCH[1:])
_MERGED = ("bin", "lib", "lib64", "sbin", "lib32", "libx32")
"""Folders of the system's programs; on most systems they are links into ``/usr``."""


def host_image(client: DockerClient) -> str:
    """Return the name of the image; import it if the engine does not have it."""
    name = f"{REPOSITORY}:{TAG}"
    try:
        client.images.get(name)
    except ImageNotFound:
        client.api.import_image_from_data(_archive(), repository=REPOSITORY, tag=TAG)
    return name


def _archive() -> bytes:
    """Return the image's file system: folders, and the links that this machine has."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name in _WRITABLE else 0o755
            archive.addfile(folder)
        for name in _MERGED:
            if os.path.islink(f"/{name}"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, os.readlink(f"/{name}")
                archive.addfile(link)
    return data.getvalue()


def system_folders() -> list[str]:
    """Return the folders that make this machine's interpreter work in a container."""
    unmerged = [f"/{name}" for name in _MERGED if not os.path.islink(f"/{name}")]
    executable = os.path.dirname(os.path.realpath(sys.executable))
    return ["/usr", "/etc", *unmerged, sys.prefix, sys.base_prefix, executable]


def program_folders(paths: Iterable[str]) -> list[str]:
    """Return the folders of a module search path that belong to the program: none of the
    interpreter's and its environment's."""
    prefixes = (sys.prefix, sys.base_prefix)
    return [
        path for path in paths
        if os.path.isdir(path) and not any(_within(path, prefix) for prefix in prefixes)
    ]  # fmt: skip


def mounts(read_only: Iterable[str], writable: Iterable[str]) -> list[Mount]:
    """Return mounts of folders at their own paths, none of them twice."""
    shared = sorted({os.path.abspath(each) for each in writable})
    kept: list[str] = []
    for folder in sorted({os.path.abspath(each) for each in read_only} - set(shared)):
        if os.path.isdir(folder) and folder != "/" and not any(_within(folder, k) for k in kept):
            kept.append(folder)
    return [
        *(Mount(folder, folder, type="bind", read_only=True) for folder in kept),
        *(Mount(folder, folder, type="bind") for folder in shared),
    ]


def _within(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)
