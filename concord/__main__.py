"""``python -m concord`` is the command line."""

from concord.workflows.cli.main import main

if __name__ == "__main__":
    main()
