# SPDX-License-Identifier: Apache-2.0
"""What the documentation says of Envoy is what it says of nginx, which is tested."""

import re
from typing import Any

import pytest
import yaml

from trees import ROOT


def snippet(language: str) -> str:
    text = (ROOT / "docs" / "gateway.md").read_text()
    [found] = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return str(found)


@pytest.fixture(scope="module")
def manager() -> Any:
    """The configuration of Envoy's HTTP connections."""
    [listener] = yaml.safe_load(snippet("yaml"))["static_resources"]["listeners"]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def test_the_same_headers_go_before_anything_else(manager: Any) -> None:
    first, *_, last = manager["http_filters"]
    mutations = first["typed_config"]["mutations"]["request_mutations"]
    by_nginx = re.findall(r'proxy_set_header (X-\S+) "";', snippet("nginx"))
    assert {m["remove"] for m in mutations} == {name.lower() for name in by_nginx}
    assert last["name"] == "envoy.filters.http.router"


def test_the_same_paths_are_served(manager: Any) -> None:
    [host] = manager["route_config"]["virtual_hosts"]
    [route] = host["routes"]
    [by_nginx] = re.findall(r"location ~ \^(.*)\$ {", snippet("nginx"))
    assert route["match"]["safe_regex"]["regex"] == by_nginx
