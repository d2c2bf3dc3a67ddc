"""The command line, an extra: what is typed and what is told; it may know all of the package below.

`entry` needs nothing of the extra, so that it can say what is missing; `launcher` stands beside the package.
"""
