"""Copies headers for Doxygen and converts their plain comments to Doxygen's: doxygen_comments.py FROM TO.

A // block at the start of a file describes the file; one before a declaration becomes ///, one after a declaration ///<. The comments are
prose: characters that are commands to Doxygen are escaped, except in `code`.
"""

import pathlib
import re
import sys

COMMENT = re.compile(r"^(\s*)//(?!/) ?(.*)$")
BEHIND = re.compile(r"^(.*[;,{)}\w\"]) +// (.*)$")


def plain(text):
    """Doxygen's and Markdown's own characters, escaped outside of `code`."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([\\@&$#<>%\"|*~\[\]])", r"\\\1", parts[i])
    return "`".join(parts)


def reference(lines):
    at = 0
    if lines and COMMENT.match(lines[0]):
        yield "/// @file"
        while at < len(lines) and (found := COMMENT.match(lines[at])):
            yield f"/// {plain(found[2])}"
            at += 1
    for line in lines[at:]:
        if found := COMMENT.match(line):
            yield f"{found[1]}/// {plain(found[2])}"
        elif (found := BEHIND.match(line)) and not line.lstrip().startswith("}"):
            yield f"{found[1]}  ///< {plain(found[2])}"
        else:
            yield line


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    for header in sorted(source.rglob("*.h")):
        copy = target / header.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("\n".join(reference(header.read_text(encoding="utf-8").split("\n"))), encoding="utf-8")


if __name__ == "__main__":
    main()
