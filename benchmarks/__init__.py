"""How fast the package is: `programs` are run, they let `contenders` take turns, and `measuring` says how."""
