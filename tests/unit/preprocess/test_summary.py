"""Lengths in words."""

from preprocess.summary import length_percentile, suggested_max_len


def test_percentiles_of_a_histogram() -> None:
    histogram = {"10": 50, "9": 40, "30": 9, "100": 1}
    assert [length_percentile(histogram, p) for p in (0, 40, 41, 90, 91, 99, 99.5, 100)] == [
        9, 9, 10, 10, 30, 30, 100, 100
    ]  # fmt: skip
    assert length_percentile({}, 50) == 0


def test_a_max_len_to_choose_keeps_99_percent_whole() -> None:
    assert suggested_max_len({"10": 50, "9": 40, "30": 9, "100": 1}) == 32
    assert suggested_max_len({"32": 1}) == 32
    assert suggested_max_len({"3": 1}) == 8
