"""The files that the style rules look at: the repository's tracked files, or a made-up tree in the rules' own tests."""

import os
import subprocess


class Tree:
    """Relative path -> contents. Binary files have the contents None."""

    def __init__(self, files, root=None):
        self.files = files
        self.root = root

    def texts(self, *suffixes, under=""):
        """(path, text) of the text files with one of these endings (all where none is given), in order."""
        for path in sorted(self.files):
            if path.startswith(under) and (not suffixes or path.endswith(suffixes)):
                text = self.files[path]
                if text is not None:
                    yield path, text


def read_repository(root):
    """Tracked files; in a source archive without .git, every file outside build folders."""
    try:
        listing = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=True).stdout
        paths = [p for p in listing.decode().split("\0") if p]
    except (OSError, subprocess.CalledProcessError):
        paths = []
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [s for s in subfolders if s not in ("build", ".git")]
            paths += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    files = {}
    for path in paths:
        full = os.path.join(root, path)
        if not os.path.isfile(full) or os.path.islink(full):
            continue
        with open(full, "rb") as stream:
            data = stream.read()
        try:
            files[path] = None if b"\0" in data[:8192] else data.decode("utf-8")
        except UnicodeDecodeError:
            files[path] = None
    return Tree(files, root)
