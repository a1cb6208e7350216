"""`python -m tandem.client`: the `tandem` command line."""

from tandem.client.cli import main

if __name__ == "__main__":
    main()
