"""What every command shares: its words, its exit code, its signals, its event loop, its large files."""
