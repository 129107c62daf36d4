"""Sizes and durations as people write and read them."""

import pytest

from kvhouse.errors import KvhouseError
from kvhouse.units import bytes_text, parse_bytes, parse_rate, parse_seconds, seconds_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("2 GB", 2 * 10**9), ("1.5MiB", 3 * 2**19), ("640", 640), ("1kib", 1024)],
)
def test_binary_and_decimal_sizes_are_not_the_same(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lots",
        "-1GiB",
        "0",
        "0GiB",
        "2Gbit",
        "nan",
        "1e3",
        "GiB",
        "1,5GiB",
        "1-2GiB",
        "2e",
        "2GiB junk",
        "2GB/s",
        "9999999TB",
        "1" + "0" * 400,
    ],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(KvhouseError):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("32GB/s", 32e9), (" 500 MiB/s ", 500 * 2**20), ("100/s", 100.0)],
)
def test_rates_are_bytes_per_second(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "/s", "32GB", "32GB/", "32GB/min", "32Gbit/s", "0/s", "1/s/s"]
)
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(KvhouseError):
        parse_rate(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (640, "640 B"), (1023, "1023 B"), (23_040, "22.5 KiB"), (2**31, "2 GiB"),
        (2**40 - 2**30, "1,023 GiB"), (2**40 - 2**20, "1 TiB"), (3 * 2**43, "24 TiB"),
    ],
)  # fmt: skip
def test_sizes_are_shown_in_binary_units(size, text):
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1234.0, "1,234 s"),
        (12.34, "12.3 s"),
        (0.9996, "1 s"),
        (0.5, "500 ms"),
        (0.00456, "4.56 ms"),
        (0.0000789, "78.9 µs"),
        (0.0, "0 µs"),
    ],
)
def test_durations(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("1s", 1.0), (" 1.5 s ", 1.5), ("2min", 120.0), ("2m", 120.0),
     ("1h", 3600.0), ("200us", 2e-4), ("200µs", 2e-4)],
)  # fmt: skip
def test_durations_are_read(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "1", "ms", "-1s", "0s", "1e3s", "1 s s", "infs", "1s\n2s", "9" * 50 + "s", "1e99h"]
)
def test_no_durations(text):
    with pytest.raises(KvhouseError):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["0ms", "900000h"])
def test_durations_out_of_range(text):
    with pytest.raises(KvhouseError, match="not above 0 and at most 31 years"):
        parse_seconds(text)
