"""``python -m research.grid`` trains the grid of results, packs its records and writes its page."""

from research.grid.command import main

if __name__ == "__main__":
    main()
