"""The page in headless Chromium: quiet, alone, within its width, and it does what it offers."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PAGES = ("cell_page", "uncertified_page", "matrix_page", "hostile_page")
VIEWS = tuple(itertools.product((1280, 390), ("light", "dark")))


@contextmanager
def opened(browser: Any, page: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """The page in a fresh context that fails on console errors and requests to anywhere else."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: asked.append(request.url))
    address = page.as_uri()
    tab.goto(address)
    yield tab
    assert said == []
    assert asked == [address]
    context.close()


@pytest.mark.parametrize("page", PAGES)
def test_nothing_overflows_in_any_width_and_light(
    browser: Any, page: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(page)
    for width, scheme in VIEWS:
        with opened(browser, path, width, scheme) as tab:
            tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            wide = tab.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (width, scheme)
            paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(_rgb(paper)) < 200) == (scheme == "dark")


def test_the_button_turns_the_page_dark_and_back(browser: Any, cell_page: Path) -> None:
    with opened(browser, cell_page) as tab:
        before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.click("#theme")
        assert sum(_rgb(tab.evaluate("getComputedStyle(document.body).backgroundColor"))) < 200
        assert tab.get_attribute("#theme", "aria-pressed") == "true"
        tab.click("#theme")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_columns_sort_by_click_and_by_key(browser: Any, cell_page: Path) -> None:
    with opened(browser, cell_page) as tab:
        head = tab.locator("#candidate-table th", has_text="retain")
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        place = head.evaluate("one => one.cellIndex")
        values = _column(tab, place)
        assert values == sorted(values, key=_float) and len(set(values)) > 1
        head.locator("button").focus()
        tab.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert _column(tab, place) == sorted(values, key=_float, reverse=True)
        others = tab.locator("#candidate-table th[aria-sort=none]").count()
        assert others == tab.locator("#candidate-table th").count() - 1


def test_text_and_method_filter_the_table(browser: Any, cell_page: Path) -> None:
    with opened(browser, cell_page) as tab:
        shown = "#candidate-table tbody tr:not([hidden])"
        everyone = tab.locator(shown).count()
        assert tab.text_content("#count") == f"{everyone} of {everyone}"
        tab.fill("#find", "too high")
        few = tab.locator(shown).count()
        assert 0 < few < everyone
        tab.fill("#find", "")
        tab.select_option("#method", "ga")
        names = tab.locator(f"{shown} td:first-child").all_text_contents()
        assert names == ["ga-w3"]
        assert tab.text_content("#count") == f"1 of {everyone}"
        tab.select_option("#method", "")
        kept = {}
        for outcome in ("accepted", "survives the screen", "excluded by the screen"):
            tab.select_option("#outcome", label=outcome)
            kept[outcome] = tab.locator(shown).count()
        assert 0 < kept["accepted"] < kept["survives the screen"]
        assert kept["survives the screen"] + kept["excluded by the screen"] == everyone


def test_every_point_and_figure_has_a_name_for_those_who_do_not_see_it(
    browser: Any, matrix_page: Path
) -> None:
    with opened(browser, matrix_page) as tab:
        assert tab.evaluate(
            "[...document.querySelectorAll('svg.drawn')]"
            ".every(one => one.getAttribute('aria-label'))"
        )
        assert tab.evaluate("document.querySelectorAll('svg.drawn use title').length") > 100


def test_the_first_picture_is_on_the_first_screen_and_fits_a_phone(
    browser: Any, cell_page: Path
) -> None:
    for width, kind in ((1280, "wide"), (390, "narrow")):
        with opened(browser, cell_page, width) as tab:
            box = tab.locator(f"#figure-retrainings svg.{kind}").bounding_box()
            other = {"wide": "narrow", "narrow": "wide"}[kind]
            assert not tab.locator(f"#figure-retrainings svg.{other}").is_visible()
            assert box["y"] < 450 and box["x"] >= 0 and box["x"] + box["width"] <= width
            size = tab.evaluate(
                f"document.querySelector('#figure-retrainings svg.{kind} text')"
                ".getBoundingClientRect().height"
            )
            assert size >= 9  # legible without zooming


def test_figures_follow_the_colours_of_the_page(browser: Any, cell_page: Path) -> None:
    with opened(browser, cell_page) as tab:
        ink = "getComputedStyle(document.querySelector('#figure-retrainings svg text')).fill"
        light = tab.evaluate(ink)
        tab.click("#theme")
        assert sum(_rgb(light)) < 350 < sum(_rgb(tab.evaluate(ink)))


def test_the_legend_filters_and_the_curve_under_the_pointer_stands_out(
    browser: Any, cell_page: Path
) -> None:
    with opened(browser, cell_page) as tab:
        drawn = tab.locator("#figure-relearning svg.drawn")
        ga = drawn.locator("[data-group=ga]:not(.key)").first
        drawn.locator(".key[data-group=ga]").last.click()
        assert not ga.is_visible()
        drawn.locator(".key[data-group=ga]").last.click()
        assert ga.is_visible()
        drawn.locator("[data-model=ga-w3] use").first.hover(force=True)
        others = drawn.locator("[data-model]:not([data-model=ga-w3])")
        assert others.count() and all("dim" in one.get_attribute("class") for one in others.all())
        tab.mouse.move(0, 0)
        assert drawn.locator(".dim").count() == 0


def test_hostile_names_stay_text_when_driven(browser: Any, hostile_page: Path) -> None:
    with opened(browser, hostile_page) as tab:
        tab.fill("#find", "onerror")
        assert tab.locator("#candidate-table tbody tr:not([hidden])").count() == 1
        tab.fill("#find", "")
        for place in range(tab.locator("#candidate-table th").count()):
            tab.locator("#candidate-table th button").nth(place).click()
        assert tab.evaluate("window.hurt === undefined")
        assert tab.evaluate("document.querySelectorAll('img, script').length") == 1


def test_the_page_prints_dark_on_white_whatever_the_screen_shows(
    browser: Any, cell_page: Path
) -> None:
    with opened(browser, cell_page, scheme="dark") as tab:
        tab.click("#theme")
        tab.click("#theme")
        tab.emulate_media(media="print")
        style = "getComputedStyle(document.body)"
        paper, ink = (_rgb(tab.evaluate(f"{style}.{one}")) for one in ("backgroundColor", "color"))
        assert min(paper) == 255 and max(ink) < 60
        assert tab.pdf(format="A4").startswith(b"%PDF")


def _column(tab: Any, place: int) -> list[str]:
    found = tab.locator(f"#candidate-table tbody tr td:nth-child({place + 1})").all_text_contents()
    return [text.strip() for text in found]


def _float(text: str) -> float:
    return float(text.replace("−", "-"))


def _rgb(colour: str) -> list[float]:
    return [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
