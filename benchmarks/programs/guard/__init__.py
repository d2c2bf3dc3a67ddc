"""What an order costs in instructions, calls and memory, held against what it did cost."""
