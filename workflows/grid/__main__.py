"""``python -m concord.workflows.grid`` trains the grid of results, packs its records and writes its page."""

from concord.workflows.grid.command import main

if __name__ == "__main__":
    main()
