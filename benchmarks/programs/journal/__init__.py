"""What journals cost on a real disk, and whether they grow slower as they grow."""
