"""Device files: the JSON that `kvhouse devices NAME` gives, edited, and everything unusable."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse import devices
from kvhouse.devices import Device
from kvhouse.devices.file import read_device
from kvhouse.errors import KvhouseError
from kvhouse.planner import plan

SMALL = {"memory_bytes": 2**34, "bandwidth": 1e11}


def written(path, values):
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return str(path)


@pytest.mark.parametrize("device", devices.listed(), ids=lambda device: device.name)
def test_the_json_of_every_device_reads_back(device, tmp_path):
    read = devices.get(written(tmp_path / "mine.json", device.to_dict()))
    for name in ("name", "title", "memory_bytes", "driver_bytes", "bandwidth", "flops"):
        assert getattr(read, name) == getattr(device, name)
    for name in ("vendor", "family", "year", "host_link", "peer_link", "source"):
        assert getattr(read, name) == getattr(device, name)
    assert read.basis == "given"
    assert read.sources == {}


def test_memory_and_bandwidth_are_enough(tmp_path):
    device = read_device(written(tmp_path / "mine.JSON", SMALL))
    assert device.name == device.title == "mine"
    assert device.usable_bytes == 2**34
    assert device.flops == {}
    assert device.host_link is None


def test_a_plan_takes_a_device_file(tmp_path):
    values = {**devices.get("l4").to_dict(), "name": "half-l4", "memory_bytes": 24 * 2**30}
    values["bandwidth"] /= 2
    slow = plan("llama-2-7b", written(tmp_path / "half.json", values), context=500)
    full = plan("llama-2-7b", "l4", context=500)
    assert slow.device == "half-l4"
    assert slow.device_basis == "given"
    assert slow.speeds[0].seconds == pytest.approx(2 * full.speeds[0].seconds)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"bandwidth": 1e11}, "field 'memory_bytes' is missing"),
        ({"memory_bytes": 2**34}, "field 'bandwidth' is missing: bytes per second"),
        ({**SMALL, "memory": 1}, "unknown key 'memory': a device has bandwidth"),
        ({**SMALL, "memory_bytes": 1.5}, "'memory_bytes' is 1.5, not a whole number"),
        ({**SMALL, "memory_bytes": 2**60}, "not a whole number from 1"),
        ({**SMALL, "driver_bytes": 2**35}, "driver_bytes is larger than memory_bytes"),
        ({**SMALL, "bandwidth": "fast"}, "'bandwidth' is 'fast', not a number"),
        ({**SMALL, "bandwidth": True}, "'bandwidth' is True, not a number"),
        ({**SMALL, "bandwidth": 0}, "'bandwidth' is 0, not above 0 and finite"),
        ({**SMALL, "host_link": -1}, "'host_link' is -1, not above 0"),
        ({**SMALL, "peer_link": math.nan}, "'peer_link' is nan"),
        ({**SMALL, "flops": [1]}, "'flops' is \\[1\\], not an object"),
        ({**SMALL, "flops": {"fp99": 1}}, "flops has no dtype 'fp99': it has float32"),
        ({**SMALL, "flops": {"int8": math.inf}}, "flops: field 'int8' is inf"),
        ({**SMALL, "title": 7}, "'title' is 7, not a string"),
        ({**SMALL, "year": "new"}, "'year' is 'new'"),
        ("[1]", "holds \\[1\\], not an object"),
        ("{", "not JSON"),
        ('{"bandwidth": 1, "bandwidth": 2}', "stated twice"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(values, reason, tmp_path):
    path = written(tmp_path / "mine.json", values)
    with pytest.raises(KvhouseError, match=reason) as error:
        devices.get(path)
    assert "mine.json" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_no_such_file(tmp_path):
    with pytest.raises(KvhouseError, match=r"none\.json: cannot be read"):
        devices.get(str(tmp_path / "none.json"))


KEYS = st.sampled_from(
    ["memory_bytes", "bandwidth", "flops", "driver_bytes", "year", "title", "host_link", "odd"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)


@given(changes=st.dictionaries(KEYS, VALUES))
def test_any_file_is_read_or_refused(changes, tmp_path_factory):
    path = tmp_path_factory.mktemp("device") / "mine.json"
    try:
        device = read_device(written(path, {**SMALL, **changes}))
    except KvhouseError as error:
        reason = str(error)
        device = Device("refused", reason, 1, 1.0, {}, "given", "")
    assert len(device.title.splitlines()) <= 1 or device.title == changes["title"]
    assert device.usable_bytes <= device.memory_bytes
    assert 0 < device.bandwidth < math.inf
