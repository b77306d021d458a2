"""``python -m ddm.cli`` runs the command line."""

from ddm.cli.main import main

if __name__ == "__main__":
    main()
