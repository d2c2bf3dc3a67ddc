"""The cost of journals on a real disk, and how it changes with their size."""
