"""``python -m transfer_async`` is ``transfer-async``."""

from transfer_async._cli.launcher import main

if __name__ == "__main__":
    main()
