"""The page of the fleet in a real browser, over real sandboxes and over a thousand of memory."""

import contextlib
import dataclasses
import shutil
import threading

import pytest

from ale_jax.sandbox.pool.api import Cause, Change, State, Status
from ale_jax.sandbox.service import operations
from ale_jax.sandbox.service.access import ServiceSettings
from benchmarks.sandbox.host_view import kill_machine
from tests.browser import chromium
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB, over, over_memory

pytestmark = pytest.mark.heavy

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
ROW = "#sandboxes .row"
SETTINGS = ServiceSettings(port=0)


@pytest.fixture(scope="module", autouse=True)
def hurried(tmp_path_factory):
    """The page with a fifth of the pause between two questions."""
    parts = shutil.copytree(operations.PARTS, tmp_path_factory.mktemp("page") / "parts")
    script, pause = parts / "service.js", "POLL_MS = 1000;"
    assert pause in script.read_text()
    script.write_text(script.read_text().replace(pause, "POLL_MS = 200;"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "PARTS", parts)
        operations._page.cache_clear()
        yield
    operations._page.cache_clear()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser):
    """Every fault of the page's own fails the test."""
    faults = []
    with contextlib.closing(browser.new_context(viewport={"width": 1280, "height": 800})) as made:
        page = made.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda fault: faults.append(fault))
        yield page
    assert faults == []


def shows(page, selector: str, text: str) -> None:
    """Waits until an element that matches, and can be seen, has the text."""
    page.locator(selector, has_text=text).first.wait_for()


def has(page, selector: str, text: str) -> None:
    """The same for one that may be out of sight."""
    page.locator(selector, has_text=text).first.wait_for(state="attached")


def hidden(page, selector: str) -> None:
    page.locator(selector).wait_for(state="hidden")


def enter(page, token: str) -> None:
    page.fill("#token input", token)
    page.click("#token button")


@pytest.mark.heavy
def test_a_life_as_its_owner_sees_it(runtime, page):
    with over(runtime) as service, service.client(ANN) as client:
        page.goto(f"{service.url}/fleet")
        enter(page, BOB + "x")
        shows(page, "#token-refused", "does not know that token")
        enter(page, ANN)
        shows(page, "#none", "There is no sandbox yet.")
        shows(page, "#nodes li", "0 of 8")

        box = client.start(SPEC, id="box", recreate=True, labels={"note": HOSTILE})
        shows(page, f"{ROW} .chip", "running")
        shows(page, f"{ROW} .name", HOSTILE)
        shows(page, "#events li", "started")
        shows(page, f"{ROW} [data-name=processes]", f"1 of {SPEC.pids}")

        box.run("mkfifo gate")
        command = threading.Thread(target=box.run, args=["cat gate"])
        command.start()
        shows(page, f"{ROW} .chip", "busy")
        box.exec("echo > gate")
        command.join()
        shows(page, f"{ROW} .chip", "running")

        sandbox = service.pool._leases.known("ann~box").sandbox
        kill_machine(sandbox)
        shows(page, f"{ROW} [data-name=generation]", "1")
        shows(page, f"{ROW} .chip", "running")
        reason = page.locator(f"{ROW} .state .second").inner_text()
        assert reason.startswith("before: ") and ("gone" in reason or "broken" in reason)
        for kind in ("lost", "recreated"):
            shows(page, "#events li[data-sandbox=box] .chip", kind)
        shows(page, "#nodes li", "1 re-created")

        box.close()
        shows(page, f"{ROW} .chip", "stopped")
        assert page.locator(ROW).count() == 1
        page.evaluate("sessionStorage.setItem('ale-sandbox-token', 'not valid any more')")
        page.locator("#token-refused").wait_for()
        enter(page, BOB)
        shows(page, "#none", "There is no sandbox yet.")  # of his
        assert page.locator("#events li").count() == 0
        page.click("#leave")
        page.locator("#token").wait_for()
        assert page.evaluate("sessionStorage.length") == 0
        enter(page, BOB)
        hidden(page, "#token")
    shows(page, "#service-lost", "The service does not answer.")
    assert page.locator("img").count() == 0 and page.title() == "Sandboxes"


def status(number: int) -> Status:
    state = State.READY if number % 10 == 0 else State.RUNNING
    head = (f"local~box-{number:04}", "here", "memory", state, None, 0, 0, 1.0 + number, 1.0, SPEC)
    return Status(*head, labels={}, history=(Change(1.0, state, ""),))


@contextlib.contextmanager
def shown(page, count: int):
    """So many sandboxes in memory, and a page that shows them: the pool."""
    with over_memory(SETTINGS, {}) as service:
        service.pool.members |= {each.id: each for each in map(status, range(count))}
        page.goto(f"{service.url}/fleet")
        page.locator(ROW).nth(count - 1).wait_for(state="attached")
        yield service.pool


@pytest.fixture
def thousand(page):
    with shown(page, 1000) as pool:
        yield pool


@pytest.fixture
def few(page):
    with shown(page, 30) as pool:
        yield pool


def ids(page) -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll('{ROW}')].map(row => row.dataset.id)")


def change(pool, id: str, **fields) -> None:
    pool.members[f"local~{id}"] = dataclasses.replace(pool.members[f"local~{id}"], **fields)


def test_rows_of_a_thousand_are_told_the_news_in_their_place(thousand, page):
    newest_first = [f"box-{number:04}" for number in reversed(range(1000))]
    assert ids(page) == newest_first
    page.evaluate(f"document.querySelectorAll('{ROW}').forEach(row => row.old = true)")
    for gone in ("box-0300", "box-0000"):
        thousand.members.pop(f"local~{gone}")
    thousand.members["new"] = dataclasses.replace(status(2000), id="local~new")
    change(thousand, "box-0701", state=State.FAILED, cause=Cause.LOST)
    change(thousand, "box-0501", busy=1)
    has(page, "[data-id=box-0501] .chip", "busy")
    left = [id for id in newest_first if id not in ("box-0300", "box-0000", "box-0701")]
    order = ["new", *left, "box-0701"]
    assert ids(page) == order
    old = f"[...document.querySelectorAll('{ROW}')].filter(row => row.old).length"
    assert page.evaluate(old) == 998
    has(page, "[data-id=box-0701] .chip", "failed")


def test_filters_search_and_order(few, page):
    change(few, "box-0012", cpu_percent=90.0)
    change(few, "box-0017", cpu_percent=95.0)
    page.click("#filters >> text=warm")
    assert ids(page) == ["box-0020", "box-0010", "box-0000"]
    page.fill("#search", "BOX-001")
    assert ids(page) == ["box-0010"]
    page.fill("#search", "nowhere")
    shows(page, "#none", "No sandbox matches.")
    few.ring.record("one", "", sandbox="local~box-0012")
    few.ring.record("two", "", sandbox="local~box-0013")
    has(page, "#events li", "two")
    page.fill("#search", "0012")
    shows(page, "#events li", "box-0012")
    hidden(page, "#events li[data-sandbox=box-0013]")
    page.fill("#search", "")
    page.click("#filters >> text=all")
    page.select_option("#order", "cpu")
    has(page, "[data-id=box-0017]", "95 %")
    assert ids(page)[:2] == ["box-0017", "box-0012"]


def test_what_is_lost_is_said_and_taken_back(few, page):
    few.node_alive = False
    shows(page, "#nodes-lost", "Node here is lost.")
    page.click("#nodes-lost button")
    hidden(page, "#nodes-lost")
    page.context.set_offline(True)
    shows(page, "#service-lost", "The service does not answer.")
    page.context.set_offline(False)
    # Without waiting until it can be seen: the page may have found the service again by itself.
    page.dispatch_event("#service-lost button", "click")
    hidden(page, "#service-lost")
    few.node_alive = True
    shows(page, "#nodes li", "alive")


def test_events_come_as_they_happen_and_no_more_than_fit(few, page):
    for number in range(700):
        few.ring.record("egress_refused", f"refusal {number}", sandbox="local~box-0001")
    has(page, "#events li", "refusal 699")
    assert page.locator("#events li").count() == 300
    assert "refusal 699" in page.locator("#events li").first.text_content()


def test_the_browser_itself_refuses_html_made_of_text(few, page):
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")


def test_nothing_is_wider_than_the_window(few, page):
    few.members["i" * 128] = dataclasses.replace(
        status(2000), id="i" * 128, labels={"a": "w" * 300}, busy=1
    )
    page.locator(ROW, has_text="iiii").wait_for()
    for width in (320, 390, 768, 1024, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        inner = "(table => table.scrollWidth - table.clientWidth)(document.querySelector('.table'))"
        assert page.evaluate(inner) == 0, width
