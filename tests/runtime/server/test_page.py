"""The page at `/` in headless Chromium: a prompt in, an answer out, each token in the colour of who wrote it."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Request, expect, sync_playwright

from tests.runtime.server.conftest import Running, Serve

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page()
        opened.set_default_timeout(60_000)
        yield opened
        browser.close()


def _failure(request: Request) -> list[str]:
    """What failed, but for streams that the page itself stops reading once they have said their last word."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url}: {request.failure}"]


def fill(page: Page, server: Running, prompt: str, tokens: int) -> list[str]:
    """Opens the page and fills its form; returns the list that the page's errors go to."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.extend(_failure(request)))
    page.goto(server.url)
    page.fill("#prompt", prompt)
    page.fill("#tokens", str(tokens))
    return problems


def test_an_answer_is_coloured_by_author_and_set_beside_plain_decoding(
    page: Page, tiny_server: Running
) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    problems = fill(page, tiny_server, "the quick brown fox jumps over the lazy dog. the quick", 60)
    page.click("#go")
    expect(page.locator("#same")).to_have_text("yes", timeout=60_000)
    drafted, plain = page.locator("#drafted span"), page.locator("#plain span")
    assert drafted.count() == plain.count() > 0
    classes = set(drafted.evaluate_all("spans => spans.map(span => span.className)"))
    assert {"accepted", "correction"} <= classes <= {"accepted", "correction", "bonus", "target"}
    assert plain.evaluate_all("spans => spans.map(span => span.className)") == ["target"] * plain.count()
    colours = {
        name: drafted.locator(f"xpath=self::*[@class='{name}']").first for name in ("accepted", "correction")
    }
    shown = {name: span.evaluate("span => getComputedStyle(span).color") for name, span in colours.items()}
    assert len(set(shown.values())) == 2
    assert page.inner_text("#drafted") == page.inner_text("#plain")
    assert "tokens/s" in page.inner_text("#speed") and "tokens/s" in page.inner_text("#plainspeed")
    assert page.inner_text("#ratio").endswith("x") and "drafted" in page.inner_text("#accepted")
    assert page.locator("#positions tr").count() >= 1
    assert problems == []
    assert all(url.startswith(tiny_server.url) for url in requests)


def test_an_answer_can_be_stopped_and_frees_its_slot(page: Page, serve: Serve, tiny_server: Running) -> None:
    fill(page, tiny_server, "abc", 200)
    page.uncheck("#compare")
    before = tiny_server.scheduler.totals.ended["Cancelled"]
    page.evaluate("() => { run(); }")
    page.wait_for_selector("#drafted span")
    page.evaluate("() => abort.abort()")
    expect(page.locator("#go")).to_be_enabled()
    assert page.inner_text("#problem") == ""
    ended = tiny_server.scheduler.totals.ended
    assert ended["Cancelled"] in (before, before + 1)  # the answer may have ended first
    assert tiny_server.scheduler.occupancy().active == 0


def test_a_refusal_is_shown_and_text_is_never_markup(page: Page, tiny_server: Running) -> None:
    fill(page, tiny_server, "x" * 5000, 10)
    page.click("#go")
    expect(page.locator("#problem")).to_contain_text("shorten")
    page.goto(tiny_server.url)
    assert page.locator("h1").inner_text() == "tiny-random"


def test_a_key_is_sent_when_it_is_given(page: Page, serve: Serve) -> None:
    server = serve(api_keys=("secret",))
    fill(page, server, "abc", 4)
    page.click("#go")
    expect(page.locator("#problem")).to_contain_text("API key")
    page.fill("#key", "secret")
    page.click("#go")
    expect(page.locator("#problem")).to_contain_text("no tokenizer")
