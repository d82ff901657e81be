"""The page in headless Chromium: quiet, alone, within its width, and it does what it offers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def opened(browser: Any, page: Path, width: int = 1280, **options: Any) -> Iterator[Any]:
    """The page in a fresh context that fails on console errors and requests to anywhere else."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    yield tab
    assert said == []
    assert [url for url in asked if not url.startswith("data:image/svg+xml")] == [page.as_uri()]
    context.close()


def brightness(tab: Any) -> float:
    color = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(float(part) for part in color[color.index("(") + 1 : -1].split(",")[:3])


@pytest.mark.parametrize("name", ["cell", "uncertified", "matrix", "hostile"])
def test_nothing_overflows_in_any_width_and_light(browser, name, pages):
    for width, scheme in ((1280, "light"), (400, "dark")):
        with opened(browser, pages[name], width, color_scheme=scheme) as tab:
            tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert (brightness(tab) < 200) == (scheme == "dark")


def test_the_answer_and_the_picture_are_readable_on_a_phone(browser, pages):
    with opened(browser, pages["cell"], 400) as tab:
        for part in ("h1", ".lines .label", ".strip .axis b", ".strip .value"):
            box = tab.locator(part).first.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 400
            size = tab.locator(part).first.evaluate("one => getComputedStyle(one).fontSize")
            assert float(size.removesuffix("px")) >= 13


def test_the_choice_of_a_candidate_moves_picture_and_numbers(browser, pages):
    with opened(browser, pages["cell"]) as tab:
        before = tab.locator(".value span:visible").all_text_contents()
        tab.select_option("#choice", label="ga-w3")
        after = tab.locator(".value span:visible").all_text_contents()
        assert len(before) == len(after) == 11 and before != after  # ten axes and the scale
        assert tab.locator("circle.candidate:visible").count() == 11
        tab.locator(".lines [data-choice]").first.click()
        assert tab.locator(".value span:visible").all_text_contents() == before


def test_columns_sort_by_click_and_by_key(browser, pages):
    with opened(browser, pages["cell"]) as tab:
        head = tab.locator("#candidates th", has_text="retain").first
        place = head.evaluate("one => one.cellIndex")

        def values() -> list[float]:
            cells = tab.locator(f"#candidates .sortable >> nth=0 >> tr td:nth-child({place + 1})")
            return [float(text.replace("−", "-")) for text in cells.all_text_contents()]

        head.click()
        assert values() == sorted(values()) and len(set(values())) > 1
        head.focus()
        tab.keyboard.press("Enter")
        assert values() == sorted(values(), reverse=True)


def test_hostile_names_stay_text_when_driven(browser, pages):
    with opened(browser, pages["hostile"]) as tab:
        for place in range(tab.locator("#choice option").count()):
            tab.select_option("#choice", index=place)
        tab.locator("#candidates th").first.click()
        assert tab.evaluate("window.hurt === undefined")
        assert tab.evaluate("document.querySelectorAll('script').length") == 1
