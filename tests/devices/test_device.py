"""One device: which FLOP/s count for a dtype, what is refused, and names that are not known."""

import pytest

from kvhouse import devices
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError


def device(**flops: float) -> Device:
    return Device("d", "d", 1, 1.0, flops, "measured", "test")


def test_a_missing_dtype_falls_back_to_float32_and_says_so():
    assert device(float32=7.0).flops_for("bfloat16") == (7.0, "float32")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float8", (9.0, "float16")),
        ("float8_e4m3fn", (9.0, "float16")),
        ("float4", (9.0, "float16")),
        ("int8", (9.0, "float16")),
        ("bfloat16", (3.0, "float32")),
        ("float64", (3.0, "float32")),
    ],
)
def test_a_narrow_type_is_computed_in_the_fastest_that_holds_it(dtype, expected):
    assert device(float32=3.0, float16=9.0).flops_for(dtype) == expected


def test_int4_may_use_float8_and_float4_not_int8():
    assert device(int8=2.0, float8=5.0).flops_for("int4") == (5.0, "float8")
    with pytest.raises(KvhouseError, match="no FLOP/s for float4"):
        device(int8=2.0).flops_for("float4")


def test_no_figure_at_all_is_an_error():
    with pytest.raises(KvhouseError, match=r"device d has no FLOP/s for bfloat16.*it has float16"):
        device(float16=7.0).flops_for("bfloat16")
    with pytest.raises(KvhouseError, match="device epyc-9654 has no FLOP/s for float32"):
        devices.get("epyc-9654").flops_for("float32")


def test_an_unknown_link_is_refused():
    assert devices.get("a100-80g").link("peer") == 300e9
    with pytest.raises(KvhouseError, match="device l4 has no known bandwidth to other devices"):
        devices.get("l4").link("peer")
    with pytest.raises(KvhouseError, match=r"no known bandwidth to the host's memory.*host_link"):
        devices.get("gb200").link("host")


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("h1000", "h100-80g"),
        ("a100", "a100-40g"),
        ("RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("mi300", "mi300x"),
        ("M4 Max", "m4-max"),
    ],
)
def test_an_unknown_name_is_answered_with_close_ones(name, suggested):
    with pytest.raises(KvhouseError, match=rf"unknown device '{name}': did you mean .*{suggested}"):
        devices.get(name)


@pytest.mark.parametrize("name", ["", "-", "zzzzzzzz", "\x1b[31m", "x" * 10**6])
def test_a_hopeless_name_is_told_where_the_list_is(name):
    with pytest.raises(KvhouseError, match="kvhouse devices") as error:
        devices.get(name)
    assert len(str(error.value)) < 300
    assert str(error.value).isprintable()


def test_memory_that_is_bought_apart_can_be_named():
    assert devices.get("m2-ultra").memory_bytes == 192 * 2**30
    assert "the most there is" in devices.get("m2-ultra").title
    chosen = devices.get("m2-ultra:64GiB")
    assert chosen.memory_bytes == 64 * 2**30
    assert chosen.bandwidth == devices.get("m2-ultra").bandwidth
    assert chosen.name == "m2-ultra:64GiB"
    assert devices.get(chosen.name) == chosen
    assert devices.get("epyc-9654:384GB").memory_bytes == 384 * 10**9


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a100-80g:40GiB", "has 80 GiB and comes with no other size"),
        ("m2-ultra:1TiB", "has at most 192 GiB, not 1TiB"),
        ("m2-ultra:", "not a size"),
        ("m2-ultra:lots", "not a size"),
    ],
)
def test_a_size_that_cannot_be_is_refused(name, reason):
    with pytest.raises(KvhouseError, match=reason):
        devices.get(name)


def test_a_list_of_one_vendor():
    apple = devices.listed("apple")
    assert {device.vendor for device in apple} == {"Apple"}
    assert 0 < len(apple) < len(devices.listed())
    with pytest.raises(KvhouseError, match="no device of vendor 'Cray': there are NVIDIA, AMD"):
        devices.listed("Cray")
