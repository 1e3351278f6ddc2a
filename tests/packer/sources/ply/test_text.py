"""Numbers of text bodies: every value exact, every line counted, every word refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.sources.ply import text as ply_text
from packer.sources.ply.text import BadNumberError, count_rows, parse_rows


@given(
    rows=st.lists(
        st.lists(st.floats(-1e307, 1e307) | st.sampled_from([np.inf, np.nan]), min_size=1, max_size=4), max_size=20
    ),
    form=st.sampled_from(["%r", "%.6f", "%.18g", "%+.17e", "%.3G"]),
    gap=st.sampled_from([" ", "  ", "\t", " \t "]),
    end=st.sampled_from(["\n", "\r\n", "\r", " \n", "\n\n", "\n \n"]),
    last=st.booleans(),
)
def test_numbers_are_as_python_reads_them(rows, form, gap, end, last) -> None:
    """Whatever the notation, blanks and line ends, a number is the float64 nearest to what is written."""
    words = [[form % x for x in row] for row in rows]
    text = end.join(gap.join(row) for row in words) + (end if last else "")
    values, sizes = parse_rows(text.encode())
    np.testing.assert_array_equal(values, [float(w) for row in words for w in row])
    assert count_rows(text.encode()).tolist() == sizes.tolist() == [len(row) for row in rows]


@given(st.floats(-1e307, 1e307), st.integers(0, 30))
def test_digits_round_correctly(value: float, digits: int) -> None:
    """A number cut to any count of digits rounds to the same bits as Python's own float."""
    text = f"{value:.{digits}e}"
    assert parse_rows(text.encode())[0].tobytes() == np.float64(text).tobytes()


@given(st.lists(st.integers(-(10**40), 10**40) | st.sampled_from(["-0", "0", "-0.0", "1e-0", "-0e1"]), min_size=1))
def test_whole_numbers(words: list[int | str]) -> None:
    """A number without a point keeps its sign, -0 too, and rounds as a float would however long it is."""
    text = " ".join(map(str, words))
    assert parse_rows(text.encode())[0].tobytes() == np.array([float(w) for w in words]).tobytes()


@pytest.mark.parametrize("text", ["1 +2 .5", "-.5 5. 007", "nan -inf 1e5", "1\v2\f3", "Infinity NaN -0"])
def test_unusual_notations(text: str) -> None:
    """What other PLY readers take is taken."""
    np.testing.assert_array_equal(parse_rows(text.encode())[0], [float(w) for w in text.split()])


def test_not_a_number_as_compilers_write_it() -> None:
    """`-nan(ind)` is what Microsoft's compilers write for NaN."""
    assert np.isnan(parse_rows(b"-nan(ind) nan")[0]).all()


@pytest.mark.parametrize(
    "token",
    ["abc", "1,2", "1_0", "0x1F", "1-2", "1.5.3", "1e", "1e999", "[1]", '"1"', "null", "\xff", "1\x002", "\0"],
)
def test_words_are_refused_where_they_stand(token: str, monkeypatch) -> None:
    """What is not a number that float64 can hold is an error with its line and what stands before it, in any piece."""
    monkeypatch.setattr(ply_text, "PIECE_BYTES", 10)
    text = f"1 2 3\n4 5 6\n\n7 8 {token} 9\n1 2 3\n"
    with pytest.raises(BadNumberError) as caught:
        parse_rows(text.encode("latin-1"))
    assert (caught.value.token, caught.value.row, caught.value.before) == (token, 2, 2)


def test_pieces_join(monkeypatch) -> None:
    """Where a body is cut into pieces makes no difference."""
    text = "".join(f"{i} {i / 7!r}\n" for i in range(200)).encode()
    whole, _ = parse_rows(text)
    for size in (1, 7, 100):
        monkeypatch.setattr(ply_text, "PIECE_BYTES", size)
        values, sizes = parse_rows(text)
        assert values.tobytes() == whole.tobytes()
        assert sizes.tolist() == [2] * 200
