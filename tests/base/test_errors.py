"""Error messages for users."""

import pytest

from albert_tf.base.errors import InputError, near, require


def test_a_broken_rule_is_said_with_what_was_received():
    """The error for a broken rule states the rule and the received values."""
    require(2, "`n` must not be 0.", n=2)
    with pytest.raises(InputError) as raised:
        require(0, "`n` must not be 0.", n=0, path="a.tsv")
    assert str(raised.value) == "`n` must not be 0. Received: n=0, path=a.tsv"
    with pytest.raises(InputError, match="^It must be so.$"):
        require("", "It must be so.")


def test_a_similar_name_is_suggested():
    """The legal name closest to a wrong name is suggested if it is similar."""
    legal = ["text_column", "task", "text"]
    assert near("txt", legal) == "; did you mean `text`?"
    assert near("number", legal) == "."
    assert near("abcd", ["abxy"]) == "; did you mean `abxy`?"
    assert near("abcd", ["axyz"]) == "."
