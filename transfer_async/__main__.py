"""Run ``python -m transfer_async`` as the command ``transfer-async``."""

from transfer_async._cli.launcher import main

if __name__ == "__main__":
    main()
