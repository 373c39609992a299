"""Options are explained by the `Args:` section that `help()` shows."""

from __future__ import annotations

from dataclasses import dataclass

from cosdefense.catalog.signatures import description_of, explanations_of, first_line


@dataclass
class Base:
    """A base.

    Args:
        rate: How fast.
        steps: How often:
            once, or
            more often.

    Reference: https://example.org
    """

    rate: float = 0.1
    steps: int = 1


@dataclass
class Derived(Base):
    """Derived, without a word about `steps`.

    Args:
        rate: How fast; half as fast as the base.
        names: A dict of the form {name: number}.
    """

    names: str = ""


@dataclass
class Silent(Base):
    pass


def function(rate: float) -> None:
    """Do something.

    Args:
        rate: How fast.
    """


def test_args_are_read() -> None:
    assert explanations_of(Base) == {"rate": "How fast.", "steps": "How often: once, or more often."}
    assert explanations_of(function) == {"rate": "How fast."}


def test_bases_explain_what_is_inherited() -> None:
    assert explanations_of(Derived) == {
        "rate": "How fast; half as fast as the base.",
        "steps": "How often: once, or more often.",
        "names": "A dict of the form {name: number}.",
    }
    assert explanations_of(Silent)["rate"] == "How fast."


def test_descriptions_do_not_repeat_the_section() -> None:
    assert description_of(Base) == "A base.\n\nReference: https://example.org"
    assert first_line(Derived) == "Derived, without a word about `steps`."
    assert description_of(function) == "Do something."
