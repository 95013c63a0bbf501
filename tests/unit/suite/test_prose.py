"""tests/prose.py turns a Python source into a page, and maps the page's lines to the source."""

import prose

SOURCE = '''\
"""A module, described in one sentence.

And in a second one."""
# A comment of two lines,
# which is one text.
x = 1  # guard: a mark is no sentence at all
raise ValueError(f"the value {x} of key is not a number")
'''


def test_each_line_of_the_page_is_known_in_the_source() -> None:
    text, numbers = prose.page_of(SOURCE)
    lines = dict(zip(text.split("\n"), numbers, strict=False))
    assert lines["And in a second one."] == 3
    assert lines["A comment of two lines,"] == 4
    assert lines["which is one text."] == 5
    assert lines["the value X of key is not a number"] == 7
    assert "guard" not in text


def test_a_message_has_a_sentence_for_each_part() -> None:
    text, numbers = prose.page_of(
        '"""One sentence; of two parts."""\nraise ValueError("key x: is absent; set y; or z")\n'
    )
    assert text.split("\n") == ["One sentence; of two parts.", "", "key x: is absent;", "", "set y;", "", "or z", ""]
    assert numbers[2:7] == [2] * 5
