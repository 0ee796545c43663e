"""The rules of webhooks that need no broker: addresses, URLs, secrets, signatures, bodies."""

from __future__ import annotations

import json

import pytest

from fileq.config import Config, config_from
from fileq.config.load import Loaded
from fileq.config.show import redacted, secret_variables, to_listing, without_secrets
from fileq.core.errors import ConfigError
from fileq.core.webhook import (
    InvalidUrl,
    new_secret,
    parse_target,
    secret_key,
    shown_url,
    signature_header,
    url_problem,
)
from fileq.webhooks.sender import blocked_because, networks
from fileq.webhooks.subscriptions import BODY_MAX, body_of

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

BLOCKED = [
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255"),
    *("192.168.1.1", "169.254.169.254", "100.64.0.1", "100.127.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1"),
    *("198.18.0.1", "198.19.255.255", "198.51.100.7", "203.0.113.7", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "fe80::1", "fe80::1%2", "fec0::1", "fc00::1", "fd12::1", "ff02::1"),
    *("::ffff:8.8.8.8", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b::7f00:1", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2002:808:808::1", "2001::1", "2001:0:53aa:64c::1", "2001:db8::1", "2001:10::1", "3fff::1"),
    *("100::1", "5f00::1", "4000::1", "not an address", "127.1", ""),
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "193.0.0.1"]
PUBLIC += ["223.255.255.255", "2606:4700:4700::1111", "2a00:1450::1", "2001:4860:4860::8888", "2003::1"]


@pytest.mark.parametrize("address", BLOCKED)
def test_an_address_that_is_not_public_is_blocked(address: str) -> None:
    assert blocked_because(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert blocked_because(address) == ""


def test_networks_are_allowed_exactly() -> None:
    allowed = networks(["10.1.0.0/16", "fd00:1::/32"])
    assert blocked_because("10.1.2.3", allowed) == blocked_because("fd00:1::5", allowed) == ""
    for address in ("10.2.0.1", "fd00:2::1", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "127.0.0.1"):
        assert blocked_because(address, allowed), address


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://example.org/hook", ""),
        ("https://example.org:8443/hook?token=1", ""),
        ("https://example.org:80", ""),
        ("https://[2606:4700::1]/", ""),
        ("https://b\u00fccher.example/", ""),
        ("http://example.org/", "is not https"),
        ("https://example.org:22/", "has the port 22"),
        ("https://example.org:6379/", "has the port 6379"),
        ("https://example.org:99999/", "has the port 99999"),
        ("https://user:secret@example.org/", "user name or password"),
        ("https://example.org/#part", "fragment"),
        ("ftp://example.org/", "must begin with http:// or https://"),
        ("file:///etc/passwd", "must begin with http:// or https://"),
        ("https:///path", "is not a URL"),
        ("https://exa mple.org/", "is not a URL"),
        ("https://example.org/\r\nHost: other", "is not a URL"),
        ("https://example.org/" + "a" * 2000, "characters"),
        ("", "is not a URL"),
    ],
)
def test_a_url_is_accepted_or_its_problem_is_named(url: str, problem: str) -> None:
    found = url_problem(url, allow_http=False, allow_ports=[])
    assert problem in found if problem else found == ""
    assert "secret" not in found


def test_settings_allow_http_and_ports() -> None:
    assert url_problem("http://example.org:9000/", allow_http=True, allow_ports=[9000]) == ""


def test_the_parts_of_a_url() -> None:
    target = parse_target("https://Example.org:8443?a=b")
    assert (target.host, target.port, target.path, target.authority) == (
        "example.org",
        8443,
        "/?a=b",
        "example.org:8443",
    )
    assert parse_target("https://[2606::1]/x").authority == "[2606::1]"
    assert parse_target("https://b\u00fccher.example/x").host == "xn--bcher-kva.example"
    with pytest.raises(InvalidUrl):
        parse_target("https://example.org:0/")


def test_the_signature_of_the_specification() -> None:
    key = secret_key(SECRET)
    assert key is not None
    header = signature_header([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert header == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    both = signature_header([key, b"x" * 32], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert both.split(" ")[0] == header
    assert len(both.split(" ")) == 2


def test_secrets() -> None:
    key = secret_key(new_secret())
    assert key is not None
    assert len(key) == 32
    for wrong in ("", "whsec_", "whsec_AAAA", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_not base64!"):
        assert secret_key(wrong) is None, wrong


@pytest.mark.parametrize("text", ["x", "\x01", "\U0001f600", '"'])
def test_a_body_is_cut_to_its_size_and_says_so(text: str) -> None:
    data = {"id": "a", "path": text * 5000, "error": text * 4000, "result": {"k": text * 50_000}, "attempt": 1}
    body = body_of("job.dead", 0, data)
    assert len(body) <= BODY_MAX
    told = json.loads(body)
    assert told["type"] == "job.dead"
    assert told["timestamp"] == "1970-01-01T00:00:00.000Z"
    assert (told["data"]["id"], told["data"]["result"], told["data"]["attempt"]) == ("a", None, 1)
    assert "result" in told["data"]["cut"]


def test_a_body_that_fits_is_complete() -> None:
    data = {"id": "a", "error": "x" * 4000, "result": {"n": 1}}
    assert json.loads(body_of("job.dead", 0, data))["data"] == data
    only_result = json.loads(body_of("job.dead", 0, data | {"result": {"k": "x" * 30_000}}))["data"]
    assert only_result == data | {"result": None, "cut": ["result"]}


# the configuration

ENDPOINT = {"name": "alerts", "url": "https://example.org/hook?token=t", "events": ["job.dead"], "secret": SECRET}


def with_endpoint(**changes: object) -> Config:
    return config_from({"webhooks": {"endpoints": [{**ENDPOINT, **changes}]}})


def test_an_endpoint_is_read_and_its_secrets_are_never_shown() -> None:
    config = with_endpoint(filter={"type": "report", "priority": "high"})
    [endpoint] = config.webhooks.endpoints
    assert endpoint.webhook.events == ("job.dead",)
    assert (endpoint.webhook.filter.type, endpoint.webhook.filter.match) == ("report", "")
    listed = to_listing(Loaded(config, {}, None))
    shown = repr(config), repr(without_secrets(config)), json.dumps(redacted(config)), repr(listed)
    assert without_secrets(config).webhooks.endpoints[0].secret == "***"
    for text in shown:
        assert SECRET not in text
    for text in (json.dumps(redacted(config)), repr(listed)):
        assert "token=t" not in text


def test_handlers_do_not_get_a_variable_with_a_secret_of_a_webhook() -> None:
    environ = {"FILEQ_WEBHOOKS_ENDPOINTS": f"[{{secret: {SECRET}}}]", "FILEQ_HANDLERS": "[{match: a}]"}
    assert secret_variables((), environ) == ("FILEQ_WEBHOOKS_ENDPOINTS",)
    assert secret_variables(["FILEQ_WEBHOOKS_ENDPOINTS"], environ) == ()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "a b"}, "webhooks.endpoints[0].name is 'a b'; it must be a name that matches [A-Za-z0-9._-]{1,100}"),
        ({"url": "http://example.org/"}, "'alerts', whose url is not https; use https, or set webhooks.allow_http"),
        ({"url": "https://u:hidden@example.org/"}, "user name or password"),
        ({"events": []}, "a list of at least one item"),
        ({"events": ["job.started"]}, "'job.started'; it must be job.completed, job.failed, job.dead"),
        ({"secret": "hidden"}, "whsec_ and 24 to 64 bytes in base64"),
        ({"secret": ""}, "has neither secret nor secret_file"),
        ({"secret_file": "/run/secret"}, "has both secret and secret_file"),
        ({"colour": "red"}, "unknown key 'webhooks.endpoints[0].colour'"),
    ],
)
def test_what_is_wrong_with_an_endpoint_is_named(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        with_endpoint(**changes)
    assert problem in str(error.value)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"allow_networks": ["10.0.0.0/33"]}, "a network such as 10.1.0.0/16"),
        ({"allow_networks": ["10.0.0.1/8"]}, "has host bits set"),
        ({"allow_ports": [70000]}, "a whole number from 0 to 65535"),
        ({"endpoints": [ENDPOINT, ENDPOINT]}, "has two webhooks named 'alerts'"),
    ],
)
def test_what_is_wrong_with_the_section_is_named(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_from({"webhooks": settings})
    assert problem in str(error.value)


def test_only_the_host_of_a_url_is_shown() -> None:
    """L6: tokens in the path of a URL, as chat services have them, were shown to keys with the scope read."""
    for secret in ("/services/T1/token", "?token=1", "/hook?token=1", "/?token=1"):
        assert shown_url(f"https://example.org:8443{secret}") == "https://example.org:8443/***"
    assert shown_url("https://example.org/") == "https://example.org"
