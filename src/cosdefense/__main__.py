"""`python -m cosdefense`: the same as `cosdefense`."""

from .cli import main

main()
