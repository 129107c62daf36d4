"""Profiles as files: what comes back, and what is refused in a line."""

import json
from dataclasses import replace

import pytest

from kvhouse import spec
from kvhouse.calibration.fit import Residuals
from kvhouse.calibration.profile import Profile, fingerprint, read_profile
from kvhouse.costs import StepRates
from kvhouse.devices import Device
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
