"""Which raytwin a side imports: this one, that of a commit, or that of another environment.

A commit is checked out as a worktree of the repository, in a temporary folder, and runs with this
environment's interpreter and libraries. An environment is named by its interpreter, and runs what
is installed there.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raytwin.scenarios.core.scenario import UsageError

ROOT = Path(__file__).absolute().parents[3]
"""Where this raytwin is imported from: a repository, or the libraries of an environment."""


@dataclass(frozen=True)
class Tree:
    """A raytwin that can be measured."""

    label: str
    """As a person knows it: ``this tree``, a commit, an interpreter."""
    interpreter: str = sys.executable
    root: Path = ROOT
    """The folder in which its package is."""
    installed: bool = False
    """Whether the interpreter finds it by itself."""
    commit: str = ""


def this_tree() -> Tree:
    """Return what is being run, with what has not been committed yet."""
    return Tree("this tree", commit=commit_of(ROOT))


def commit_of(root: Path) -> str:
    """Return the commit that is checked out in `root`, with ``+`` if files differ from it.

    An empty string where `root` is no repository of git's, such as an environment's libraries.
    """
    try:
        if Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return ""
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
        return _git(root, "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


@contextlib.contextmanager
def other_tree(against: str) -> Iterator[Tree]:
    """Yield the raytwin of a commit, a tag or a branch, or of an interpreter's environment.

    Raises UsageError for what is neither. A commit's worktree is there within the context alone.
    """
    path = Path(against).expanduser()
    if path.is_file():
        yield _of_interpreter(path)
        return
    try:
        commit = _git(ROOT, "rev-parse", "--verify", "--quiet", f"{against}^{{commit}}")
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            f"{against!r} is neither a commit of {ROOT} nor a file: give a commit, a tag, a branch"
            " or the interpreter of another environment"
        ) from error
    folder = tempfile.TemporaryDirectory(prefix="raytwin-against-", ignore_cleanup_errors=True)
    root = Path(folder.name) / "tree"
    try:
        _git(ROOT, "worktree", "add", "--quiet", "--detach", str(root), commit)
        yield Tree(against, root=root, commit=commit)
    finally:
        folder.cleanup()
        # The repository forgets the worktree whose folder is gone, also one that was half made.
        _git(ROOT, "worktree", "prune")


def _of_interpreter(path: Path) -> Tree:
    program = "import raytwin, pathlib; print(pathlib.Path(raytwin.__file__).resolve())"
    try:
        done = subprocess.run(
            [str(path), "-P", "-c", program], cwd="/", env={}, capture_output=True, text=True,
            check=True, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{path} is no Python that has raytwin: give a commit, a tag, a branch or the"
            " interpreter of an environment where raytwin is installed"
        ) from error
    root = Path(done.stdout.strip()).parents[1]
    return Tree(str(path), str(path.absolute()), root, True, commit_of(root))


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
