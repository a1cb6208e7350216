"""The page at `/`: its headers, and a newcomer's first minutes with it in a real Chromium."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem.http.page import POLICY, page_routes
from tests.http_svc.conftest import Stack
from tests.http_svc.test_serving import caller, running_door

pytestmark = pytest.mark.slow

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
# Where Chromium calls home it is refused, or slow.
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)


def test_files_are_served_with_a_strict_policy_and_ask_for_nothing_else(stack: Stack) -> None:
    for route in page_routes():
        answer = httpx.get(stack.url + route.path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "unsafe" not in POLICY
        assert not re.search(r"https?://(?!www\.w3\.org)", answer.text)  # the name of SVG's elements is no address
        assert not re.search(r"\s(style|on\w+)=", answer.text if route.path == "/" else "")
        again = httpx.get(stack.url + route.path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert httpx.get(f"{stack.url}/page/../app.py").status_code == 404
    assert httpx.get(f"{stack.url}/page/none").status_code == 404
    assert httpx.post(f"{stack.url}/", json={}).status_code == 405


async def test_it_asks_for_no_key_and_can_be_switched_off(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-at-least-sixteen-characters")
    async with running_door(stack, auth_token_file=keys) as door, caller(door) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
    async with running_door(stack, page=False) as door, caller(door) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/page/main.js")).status_code == 404


class Page:
    """The page in a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def wait(self, condition: Callable[[], object]) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, 60, poll_frequency=0.05).until(lambda _: condition())

    def answered(self, count: int) -> None:
        """Waits for the statistics under so many answers."""
        self.wait(lambda: len(self.all(".statistics")) == count)

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def with_alt(self, key: str) -> None:
        from selenium.webdriver import ActionChains, Keys

        ActionChains(self.driver).key_down(Keys.ALT).send_keys(key).key_up(Keys.ALT).perform()

    def size(self, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def colours(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, name: str) -> None:
        """A picture for the docs, where one is wanted."""
        if folder := os.environ.get("TANDEM_TEST_PICTURES"):
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not CHROMIUM or not DRIVER:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra dev")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield browser
    finally:
        browser.quit()


@pytest.fixture
def page(driver: Any, stack: Stack) -> Iterator[Page]:
    made = Page(driver)
    made.size(1100, 720)
    made.colours("light")
    driver.get(f"{stack.url}/")
    made.wait(lambda: made.find("#model").get_property("value"))
    yield made
    assert made.complaints() == []


def test_a_newcomer_has_an_answer_after_one_click(page: Page) -> None:
    page.find("#examples button").click()
    page.answered(1)
    assert page.find(".turn.assistant .text").text
    assert "tokens" in page.find(".statistics").text
    assert re.search(r"tokenize \d+ ms · queue \d+ ms · prefill \d+ ms", page.find(".statistics").text)
    assert page.driver.switch_to.active_element == page.find("#message")
    page.press("And then?\n")
    page.answered(2)
    page.picture("page")


def test_tokens_have_colours_alternatives_and_keys(page: Page) -> None:
    from selenium.webdriver import ActionChains, Keys

    page.press("Good morrow\n")
    page.answered(1)
    text = page.find(".turn.assistant .text").text
    page.with_alt("t")
    spans = page.all(".text .token")
    ordinary = [span for span in spans if "special" not in span.get_attribute("class")]
    joined = "".join(span.get_property("textContent") for span in ordinary)
    assert joined.strip() == text
    assert all(re.search(r"\bp\d\b", span.get_attribute("class")) for span in spans)
    ActionChains(page.driver).move_to_element(ordinary[1]).perform()
    rows = page.find("#alternatives").text.split("\n")
    assert len(rows) >= 5
    assert sum(float(share) for share in re.findall(r"([\d.]+) %", "\n".join(rows))) <= 100.5
    page.picture("page-tokens")
    page.driver.execute_script("arguments[0].focus()", page.find(".text"))
    page.press(Keys.ARROW_RIGHT)
    assert page.all(".token.chosen")
    page.find(".statistics button").click()
    page.wait(lambda: page.all(".reasoning .token.special"))
    assert page.find(".reasoning .token.special").text == "<s>"


def test_two_columns_compare_parameters_with_one_seed(page: Page) -> None:
    page.with_alt("c")
    for field, temperature in zip(page.all("[name=temperature]"), ("0", "1.5"), strict=True):
        field.send_keys(temperature)
    page.find("#message").click()
    page.press("What news?\n")
    page.answered(2)
    seeds = {re.search(r"seed (\d+)", each.text)[1] for each in page.all(".statistics")}  # type: ignore[index]
    assert len(seeds) == 1
    page.colours("dark")
    page.picture("page-compare")
    page.with_alt("c")
    assert len(page.all(".column")) == 1


def test_an_answer_is_stopped_and_what_is_wrong_is_said(page: Page) -> None:
    from selenium.webdriver import Keys

    page.find("details.parameters summary").click()
    page.find("[name=others]").send_keys('{"ignore_eos": true}')
    page.find("[name=max_tokens]").clear()
    page.find("[name=max_tokens]").send_keys("480")
    page.find("#message").click()
    page.press("Speak\n")
    page.wait(lambda: page.find(".turn.assistant .text").text)
    page.press(Keys.ESCAPE)
    page.answered(1)
    assert "stopped" in page.find(".statistics").text
    page.find("[name=top_p]").send_keys("7")
    page.find("#message").click()
    page.press("Speak\n")
    page.wait(lambda: page.all(".error"))
    assert "top_p" in page.find(".error").text
    assert any("400" in complaint for complaint in page.complaints())  # the browser's own words about the refusal


def test_what_a_model_says_is_text(page: Page) -> None:
    page.find("details.parameters summary").click()
    field = page.find("[name=others]")
    field.send_keys('{"guided": {"choices": ["<img src=x onerror=alert(1)> & <b>"]}}')
    page.find("#message").click()
    page.press("<i>Speak</i>\n")
    page.answered(1)
    assert page.find(".turn.assistant .text").text == "<img src=x onerror=alert(1)> & <b>"
    assert page.find(".turn.user").text == "<i>Speak</i>"
    assert not page.all(".log img, .log b, .log i")


def test_a_phone_shows_everything_without_scrolling_sideways(page: Page) -> None:
    page.size(360, 480)
    page.find("#examples button").click()
    page.answered(1)
    page.find("#message").send_keys("And what then?\n")
    page.answered(2)
    ends = "return [...document.querySelectorAll('.statistics, #composer')].map((each) => each.getBoundingClientRect())"
    *_, shown, composer = page.driver.execute_script(ends)
    assert 0 < shown["top"] < shown["bottom"] <= composer["top"] + 1, "the end of the answer is in sight"
    page.size(360, 740)
    page.find("#tokens").click()
    page.picture("page-phone")
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 360
    for selector in ("#message", "#send", "#compare", "#clear"):
        box = page.find(selector).rect
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360, selector
