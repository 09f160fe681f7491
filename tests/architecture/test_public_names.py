"""The front door shows exactly what it documents."""

import tracelens


def test_all_is_sorted_and_complete() -> None:
    """`__all__` is sorted, and every name in it can be fetched."""
    assert list(tracelens.__all__) == sorted(tracelens.__all__)
    for name in tracelens.__all__:
        assert getattr(tracelens, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as it does in any module."""
    assert not hasattr(tracelens, "recrod")
