"""Error messages for users."""

import pytest

from albert_tf.base.errors import (
    InputError,
    errors_in,
    first_line,
    input_errors,
    near,
    require,
)


def test_a_broken_rule_is_said_with_what_was_received():
    """The error for a broken rule states the rule and the received values."""
    require(2, "`n` must not be 0.", n=2)
    with pytest.raises(InputError) as raised:
        require(0, "`n` must not be 0.", n=0, path="a.tsv")
    assert str(raised.value) == "`n` must not be 0. Received: n=0, path=a.tsv"
    with pytest.raises(InputError, match="^It must be so.$"):
        require("", "It must be so.")
    with pytest.raises(InputError, match="Received: x=a 1 b 2$"):
        require("", "A value's lines are joined.", x="a 1\nb 2")


def test_errors_of_a_library_state_the_rule_and_the_reason():
    """A library's error becomes the reason, and other errors stay unchanged."""
    with pytest.raises(InputError) as raised:
        with input_errors((KeyError, OSError), "`x` must be a file", x=3):
            raise OSError("It is missing.\nSee the manual.")
    message = "`x` must be a file: It is missing. Received: x=3"
    assert str(raised.value) == message
    with pytest.raises(InputError, match="^Rule: OSError.$"):
        with input_errors(OSError, "Rule"):
            raise OSError
    for error in (InputError("y"), TypeError("y")):
        with pytest.raises(type(error), match="^y$"):
            with input_errors((OSError, ValueError), "Rule", x=3):
                raise error


def test_the_first_line_of_an_error_names_no_node():
    """The first line of an error omits nodes and ops, or is the type."""
    assert first_line(ValueError("x {{node a}} y [Op:R]\nz")) == "x y"
    assert first_line(KeyError()) == "KeyError"


def test_errors_begin_with_the_location_of_the_data():
    """The location of the data precedes a rule; other errors are unchanged."""
    with pytest.raises(InputError, match="^a.tsv:3: `n` must be 1. Rec.*n=2$"):
        with errors_in("a.tsv:3"):
            require(False, "`n` must be 1.", n=2)
    with pytest.raises(KeyError, match="^'n'$"):
        with errors_in("a.tsv:3"):
            raise KeyError("n")


def test_a_similar_name_is_suggested():
    """The legal name closest to a wrong name is suggested if it is similar."""
    legal = ["text_column", "task", "text"]
    assert near("txt", legal) == "; did you mean `text`?"
    assert near("number", legal) == "."
    assert near("abcde", ["abcxy"]) == "; did you mean `abcxy`?"
    assert near("abcd", ["abxy"]) == "."


def test_names_with_all_words_are_suggested():
    """Up to three names that contain all words are closer than similar ones."""
    legal = ["num_seeds", "random_seed", "train_size", "eval_size"]
    assert near("seed", legal) == "; did you mean `random_seed`?"
    found = near("size", [*legal, "test_size", "last_size"])
    assert found == "; did you mean `train_size` or `eval_size` or `test_size`?"
    assert near("size_eval", legal) == "; did you mean `eval_size`?"
    legal = ["initial_epoch", "epochs"]
    assert near("epoch", legal) == "; did you mean `epochs`?"
