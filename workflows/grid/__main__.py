"""``python -m concord.workflows.grid`` trains and renders the grid of results."""

from concord.workflows.grid.command import main

if __name__ == "__main__":
    main()
