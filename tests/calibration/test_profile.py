"""Profiles as files: what comes back, and what is refused in a line."""

import json
from dataclasses import replace

import pytest

from kvhouse import spec
from kvhouse.calibration.fit import Residuals
from kvhouse.calibration.profile import Profile, read_profile
from kvhouse.calibration.profile_parts import Ways
from kvhouse.calibration.stamp import fingerprint
from kvhouse.costs import StepRates
from kvhouse.devices import Device
from kvhouse.engine.fast.paths import Paths
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout

SPEC = spec.load("smollm2")
LAYOUT = KVLayout.of(SPEC, "fp32")
RATES = StepRates((1, 8, 64), (0.03, 0.04, 0.1), 0.01, 1e-4, 1e-5, 3e-11, 1e-10, 3e-12)
DEVICE = Device("local", "here", 2**34, 2e10, {"float32": 1e11}, "measured", "test")


@pytest.fixture
def profile():
    fit = Residuals(90, 0.02, 0.06, 0.03, 0.06)
    return Profile.of(
        SPEC, LAYOUT, "float32", DEVICE, 2, RATES, fit, disturbance=0.01, partial=False
    )


@pytest.fixture
def written(profile, tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(profile.encode())
    return path


def test_what_is_written_is_read(profile, written):
    assert read_profile(written) == profile
    times = read_profile(written).steps(SPEC, LAYOUT)
    assert times.rates == RATES
    assert profile.device.memory_bytes == 2**34
    assert profile.versions.keys() >= {"python", "numpy"}


def test_a_profile_s_machine_has_the_rate_of_its_dtype():
    device = replace(DEVICE, flops={"float32": 1e11, "bfloat16": 4e11})
    fit = Residuals(90, 0.02, 0.06, 0.03, 0.06)
    for dtype, rate in (("float32", 1e11), ("bfloat16", 4e11), ("float16", 1e11)):
        made = Profile.of(
            SPEC, LAYOUT, dtype, device, 2, RATES, fit, disturbance=0.0, partial=False
        )
        assert made.machine.flops == rate
        assert made.device.flops_for(dtype)[0] == rate


def test_what_an_older_kvhouse_wrote_says_nothing_of_others(written):
    values = json.loads(written.read_text())
    del values["others_share"]
    written.write_text(json.dumps(values))
    assert read_profile(written).others_share is None


@pytest.mark.parametrize(
    ("model", "layout", "reason"),
    [
        ("llama-2-7b", LAYOUT, "of 'smollm2', not of llama-2-7b: calibrate that"),
        ("smollm2", KVLayout.of(SPEC, "int8"), "of KV format 'fp32', not int8"),
        ("smollm2", KVLayout.of(SPEC, "fp32", 32), "of block size 16, not 32"),
    ],
)
def test_of_something_else_it_is_refused(profile, model, layout, reason):
    with pytest.raises(KvhouseError, match=reason):
        profile.steps(spec.load(model), layout)


def test_of_another_dtype_it_is_refused(profile):
    profile.refuse_other(SPEC, LAYOUT, "float32")
    with pytest.raises(KvhouseError, match="of dtype 'float32', not bfloat16"):
        profile.refuse_other(SPEC, LAYOUT, "bfloat16")


COMPILED = Paths(30, compiled=True)
WAYS = {"kv_rotation": False, "fast_path": True, "paths": COMPILED}


def made_with(profile, **ways):
    """The profile with a record of how its engine computed."""
    record = WAYS | ways
    paths = record["paths"]
    return profile.model_copy(update=record | {"paths": paths and Ways.of(paths)})


def test_of_an_engine_that_was_asked_for_another_way_it_is_refused(profile, tmp_path):
    own = made_with(profile)
    path = tmp_path / "p.json"
    path.write_bytes(own.encode())
    assert read_profile(path) == own
    own.refuse_other_way(rotated=False, fast_path=True)
    with pytest.raises(KvhouseError, match="not rotated: calibrate with --kv-rotation"):
        own.refuse_other_way(rotated=True, fast_path=True)
    with pytest.raises(KvhouseError, match="with the fast path: calibrate with --no-fast-path"):
        own.refuse_other_way(rotated=False, fast_path=False)
    other = made_with(profile, kv_rotation=True, fast_path=False)
    other.refuse_other_way(rotated=True, fast_path=False)
    with pytest.raises(KvhouseError, match="were rotated: calibrate with --no-kv-rotation"):
        other.refuse_other_way(rotated=False, fast_path=False)
    with pytest.raises(KvhouseError, match="without the fast path: calibrate with --fast-path"):
        other.refuse_other_way(rotated=True, fast_path=True)


@pytest.mark.parametrize(
    ("kv_format", "rotated"), [("fp32", False), ("int8", False), ("int4", True)]
)
def test_one_without_a_record_was_made_as_older_versions_did(written, kv_format, rotated):
    """They rotated int4 alone, and took the fast path where they could."""
    values = json.loads(written.read_text())
    for key in ("kv_rotation", "fast_path", "paths"):
        del values[key]
    written.write_text(json.dumps(values | {"kv_format": kv_format}))
    old = read_profile(written)
    old.refuse_other_way(rotated=rotated, fast_path=True)
    for rotation, fast in ((not rotated, True), (rotated, False)):
        with pytest.raises(KvhouseError, match="calibrate with"):
            old.refuse_other_way(rotated=rotation, fast_path=fast)
    assert "an older kvhouse made it" in old.otherwise(COMPILED)


def test_a_run_that_went_another_way_is_told(profile):
    own = made_with(profile)
    assert own.otherwise(Paths(30, compiled=True)) is None
    assert own.otherwise(Paths(30, note="no kernel")) == (
        "is of a model that was computed by compiled code, and this run by the fast path in torch"
    )
    assert own.otherwise(Paths(reason="not understood")).endswith("this run as transformers does")


def test_of_a_server_nobody_knows_which_way_it_computes(profile):
    server = profile.model_copy(update={"machine": None, "kv_rotation": None})
    for rotated in (False, True):
        server.refuse_other_way(rotated=rotated, fast_path=rotated)
    assert server.otherwise(COMPILED) is None


def test_a_name_makes_no_other_model():
    assert fingerprint(replace(SPEC, name="mine")) == fingerprint(SPEC)
    assert fingerprint(replace(SPEC, layers=SPEC.layers[1:])) != fingerprint(SPEC)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda values: values.pop("rates"), "rates"),
        (lambda values: values.update(other=1), "other"),
        (lambda values: values.update(kind="kvhouse-profile-9"), "kind"),
        (lambda values: values["rates"].update(row=-1.0), "rates.row"),
        (lambda values: values["rates"].update(sample=float("nan")), "rates.sample"),
        (lambda values: values["rates"].update(knots=[]), "rates.knots"),
        (lambda values: values["machine"].update(bandwidth=0), "machine.bandwidth"),
        (lambda values: values.update(fingerprint="\n"), "fingerprint"),
    ],
)
def test_a_damaged_one_is_named(written, change, named):
    values = json.loads(written.read_text())
    change(values)
    written.write_text(json.dumps(values))
    with pytest.raises(KvhouseError, match=f"p.json: is no profile of kvhouse: '{named}") as error:
        read_profile(written)
    assert "\n" not in str(error.value)


def test_knots_that_do_not_ascend_are_refused(written):
    values = json.loads(written.read_text())
    values["rates"]["knots"] = [8, 1, 64]
    written.write_text(json.dumps(values))
    with pytest.raises(KvhouseError, match="must ascend"):
        read_profile(written).steps(SPEC, LAYOUT)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_json_object_is_refused(tmp_path, content):
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(KvhouseError, match=r"p\.json"):
        read_profile(path)
