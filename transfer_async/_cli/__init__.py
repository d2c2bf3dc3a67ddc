"""What the command line is made of; only `app` needs typer."""
