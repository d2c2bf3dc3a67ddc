"""A regression check that counts instructions, calls and memory instead of measuring time."""
