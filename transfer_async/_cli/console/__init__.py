"""What every command shares: its words, its exit code, its signals, its event loop, how it reads a large file."""
