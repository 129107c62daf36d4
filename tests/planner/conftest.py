"""Cards whose figures are easy to reckon with."""

import pytest

from kvhouse.devices import Device

GIB = 2**30


@pytest.fixture(scope="session")
def card():
    """24 GiB, 1 TB/s, 100 TFLOP/s in float16."""
    return Device(
        "card",
        "A card",
        24 * GIB,
        1e12,
        {"float16": 1e14, "float32": 1e13},
        "datasheet",
        "",
        vendor="Maker",
        host_link=25e9,
    )
