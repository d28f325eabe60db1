"""The page of experiments/report.py in a browser: clicked, typed at, read, on a phone too."""

import shutil

import numpy as np
import pytest
from report_folders import SCHEDULE, SCORES, make_runs, make_sweep, written

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="Debian's chromium and chromium-driver are not installed"
)
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of two runs; of a sweep whose two methods have three seeds each."""
    base = tmp_path_factory.mktemp("pages")
    sweep = make_sweep(base / "s", {0.1: [[0.1, 0.2, 0.3]], 0.2: [[0.1, 0.5, 0.7]] * 2}, rounds=20)
    (base / "sweep").mkdir()
    return {"runs": written(base, *make_runs(base)), "sweep": written(base / "sweep", sweep)}


@pytest.fixture
def opened(browser, pages):
    """`opened(name, width)`: the page, loaded anew; at the end it has complained of nothing."""

    def load(name="runs", width=DESK):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(pages[name].as_uri())
        return browser

    yield load
    assert browser.get_log("browser") == []


def one(browser, css):
    return browser.find_element("css selector", css)


def every(browser, css):
    return browser.find_elements("css selector", css)


def entries(browser):
    """Label and value of each line in the legend."""
    return [
        tuple(span.text for span in entry.find_elements("css selector", "span"))
        for entry in every(browser, "#legend .entry")
    ]


def test_values_are_read_by_keyboard_and_pointer(opened):
    """They are those of the rows; b has none at the end, where it is not finite."""
    browser = opened()
    assert one(browser, "#place").text == "at round 20"
    assert entries(browser) == [
        ("alpha 0.25", "0.75"), ("alpha 4", "none, diverged at round 17")
    ]  # fmt: skip
    curves = one(browser, "#curves")
    curves.send_keys(Keys.ARROW_LEFT)
    assert one(browser, "#place").text == "at round 10"
    assert [value for _, value in entries(browser)] == ["0.5", "0.625, diverged at round 17"]
    spoken = one(browser, "#spoken").get_attribute("textContent")
    assert spoken.startswith("at round 10; alpha 0.25 0.5; alpha 4 0.625")
    left = -curves.size["width"] // 2 + 60  # beside the numbers of the vertical axis
    webdriver.ActionChains(browser).move_to_element_with_offset(curves, left, 0).perform()
    assert one(browser, "#place").text == "at round 0"
    assert [value.split(",")[0] for _, value in entries(browser)] == ["0.125", "0.125"]


def test_any_column_over_any_axis(opened):
    browser = opened()
    Select(one(browser, "#axis")).select_by_visible_text("bytes sent and received")
    Select(one(browser, "#column")).select_by_visible_text("test loss")
    assert one(browser, "#place").text == "at bytes sent and received 1400"
    assert [value.split(",")[0] for _, value in entries(browser)] == ["0.5", "0.5"]
    expected = "test loss over bytes sent and received, 2 lines"
    assert one(browser, "#curves").get_attribute("aria-label") == expected


@pytest.mark.parametrize("press", ["click", "keyboard"])
def test_the_legend_switches_lines_and_the_rest_is_scaled_anew(opened, press):
    browser = opened()
    drawn = "#curves path[data-line]"
    assert len(every(browser, drawn)) == 2 and len(every(browser, "#curves path")) == 3  # a cross
    before = one(browser, "#curves path[data-line='alpha 4']").get_attribute("d")
    first = every(browser, "#legend .entry")[0]
    first.click() if press == "click" else first.send_keys(Keys.SPACE)
    assert first.get_attribute("aria-pressed") == "false"
    assert [line.get_attribute("data-line") for line in every(browser, drawn)] == ["alpha 4"]
    after = one(browser, drawn).get_attribute("d")
    # From 0.125 to 0.625 where it was to 0.75: the last point is at the top.
    heights = [float(text.split()[-1]) for text in (before, after)]
    assert heights[1] == 14 and heights[0] > 14
    first.click() if press == "click" else first.send_keys(Keys.ENTER)
    assert len(every(browser, drawn)) == 2


def columns(browser, *names):
    """The cells of some columns, from the top."""
    head = [cell.text for cell in every(browser, "#results thead th")]
    rows = [row.find_elements("css selector", "td") for row in every(browser, "#results tbody tr")]
    return [[row[head.index(name)].text for row in rows] for name in names]


@pytest.mark.parametrize("press", ["click", "keyboard"])
def test_the_table_sorts_by_a_column(opened, press):
    """Words come after numbers; a second time it turns."""
    browser = opened("sweep")
    assert columns(browser, "server_lr", "seeds") == [["0.1", "0.2"], ["1", "2"]]
    head = next(c for c in every(browser, "#results th") if c.text == "test score")
    button = head.find_element("css selector", "button")
    for direction, rates in (("ascending", ["0.1", "0.2"]), ("descending", ["0.2", "0.1"])):
        button.click() if press == "click" else button.send_keys(Keys.ENTER)
        assert head.get_attribute("aria-sort") == direction
        assert columns(browser, "server_lr") == [rates]
    browser = opened()
    head = next(c for c in every(browser, "#results th button") if c.text == "test score")
    head.click()
    assert columns(browser, "test score") == [["0.7500", "diverged"]]
    assert columns(browser, "best test score") == [[f"{SCORES['a'][2]:.4f}", "0.6250"]]


def test_a_band_is_read_with_its_line(opened):
    browser = opened("sweep")
    (label, value), *rest = entries(browser)
    assert label.endswith("(2 seeds)") and value == "0.7 (0.7 to 0.7)" and rest == []
    assert len(every(browser, "#curves path")) == 2


def test_the_schedule_zooms_and_says_who_visits(opened):
    """By keys, buttons and the wheel; 0 and `whole` undo it. Client 0's first visit is clicked."""
    browser = opened()
    visits = one(browser, "#visits")
    said = lambda: one(browser, "#visit").text  # noqa: E731
    assert said() == "rounds 0 to 19, 6 clients"
    assert visits.get_attribute("aria-label").startswith("visits in rounds 0 to 19, 6 of 6 clients")
    visits.send_keys("+")
    assert said() == "rounds 5 to 14, 6 clients"
    visits.send_keys(Keys.ARROW_RIGHT)
    assert said() == "rounds 6 to 15, 6 clients"
    one(browser, "#whole").click()
    one(browser, "#closer").click()
    one(browser, "#wider").click()
    assert said() == "rounds 0 to 19, 6 clients"
    visits.send_keys("")  # focused, so that the wheel is its own
    browser.execute_script("arguments[0].focus()", visits)
    origin = webdriver.common.actions.wheel_input.ScrollOrigin.from_element(visits)
    webdriver.ActionChains(browser).scroll_from_origin(origin, 0, -100).perform()
    assert said() == "rounds 2 to 17, 6 clients"
    visits.send_keys("0")
    assert said() == "rounds 0 to 19, 6 clients"
    working = SCHEDULE.working()
    fields = (getattr(SCHEDULE, name)[working] for name in ("client", "staleness", "work"))
    rounds, visit = np.nonzero(working)[0], [*zip(*fields, strict=True)]
    for k in range(3):
        visits.send_keys("n")
        client, staleness, work = visit[k]
        text = f"client {client}, staleness {staleness}, work {work} units"
        assert said() == f"round {rounds[k]}: {text}"
    visits.send_keys("p")
    assert said().startswith(f"round {rounds[1]}: client {visit[1][0]},")
    Select(one(browser, "#colour")).select_by_visible_text("work")
    assert one(browser, "#scale").text.split("\n")[-1].endswith(f"{SCHEDULE.work.max()} units")


def test_a_click_finds_the_visit_under_it(opened):
    """The highest row is the client with most visits; its last round is the rightmost mark."""
    browser = opened()
    counts = np.bincount(SCHEDULE.client[SCHEDULE.working()], minlength=6)
    client = max(range(6), key=lambda k: (counts[k], k))
    last = np.nonzero((SCHEDULE.client == client).any(axis=1))[0][-1]
    visits, size = one(browser, "#visits"), one(browser, "#visits").size
    wide, high = (size["width"] - 52 - 16) / 20, (size["height"] - 34 - 4) / 6
    x, y = 52 + wide * (last + 0.5), 4 + high / 2
    at = int(x - size["width"] / 2), int(y - size["height"] / 2)
    webdriver.ActionChains(browser).move_to_element_with_offset(visits, *at).click().perform()
    assert one(browser, "#visit").text.startswith(f"round {last}: client {client}, staleness")


@pytest.mark.parametrize("name", ["runs", "sweep"])
def test_on_a_phone_nothing_is_wider_than_the_page(opened, name):
    """The table alone scrolls, in its own frame; what is touched is large enough."""
    browser = opened(name, PHONE)
    for details in every(browser, "details"):
        browser.execute_script("arguments[0].open = true", details)
    width = "return document.documentElement.scrollWidth"
    assert browser.execute_script(width) == PHONE
    wide = [
        element.get_attribute("outerHTML")[:80]
        for element in every(browser, "main > section > *, #legend .entry, select")
        if element.is_displayed() and element.rect["x"] + element.rect["width"] > PHONE
    ]
    assert wide == []
    assert min(e.size["height"] for e in every(browser, "#legend .entry")) >= 32


def test_everything_is_reached_by_the_tab_key(opened):
    browser = opened("sweep")
    one(browser, "body").send_keys("")
    seen = []
    for _ in range(60):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        name = browser.execute_script("const a = document.activeElement; return a.id || a.tagName")
        seen.append(name)
        if name == "BODY":
            break
    wanted = ["column", "axis", "curves", "schedule", "colour", "closer", "wider", "whole"]
    assert [name for name in seen if name in [*wanted, "visits"]] == [*wanted, "visits"]
    assert seen.count("SUMMARY") == 3 and "BUTTON" in seen
