"""`python -m cosdefense`: the same as `cosdefense`."""

from .cli.app import main

main()
