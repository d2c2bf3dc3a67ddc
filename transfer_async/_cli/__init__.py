"""What the command line is made of; only `app`, `journal` and `lines` need typer."""
