"""The README's section on filters, executed: each example, each refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cluster import FilterError, parse
from cluster.language import Filter, as_filter, normal_matches

README = Path(__file__).parents[2] / "README.md"
RESULTS = {"true": True, "false": False, "unknown": None}


def section() -> str:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- filters:begin -->\n(.*)<!-- filters:end -->", text, re.DOTALL)
    return found[1] if found else ""


def code(cell: str) -> str:
    """Return the text of a Markdown code span; the fence may be any number of backticks."""
    found = re.fullmatch(r"(`+)(.*?)\1", cell.strip(), re.DOTALL)
    assert found, cell
    inside = found[2]
    padded = len(inside) > 2 and inside[0] == inside[-1] == " "
    return inside[1:-1] if padded else inside


def table(*heading: str) -> list[list[str]]:
    """Return the rows of the table with this heading."""
    rows: list[list[str]] = []
    inside = False
    for line in section().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if cells == list(heading):
            inside = True
        elif inside and not cells:
            break
        elif inside and not line.startswith("|---"):
            rows.append(cells)
    return rows


EXAMPLES = table("filter", "attributes", "result")
REFUSALS = table("filter", "why")


def test_the_readme_has_the_tables() -> None:
    assert len(EXAMPLES) >= 35
    assert len(REFUSALS) >= 20
    assert {row[2] for row in EXAMPLES} == set(RESULTS)


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: f"{row[0]} {row[1]}")
def test_example(row: list[str]) -> None:
    text, attributes = code(row[0]), json.loads(code(row[1]))
    parsed = parse(text)
    assert parsed.evaluate(attributes) is RESULTS[row[2]]
    assert normal_matches(parsed.normal_form, attributes) is (RESULTS[row[2]] is True)
    assert as_filter(parsed.to_json()) == parse(parsed.text) == parsed


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row[0])
def test_refusal(row: list[str]) -> None:
    with pytest.raises(FilterError) as caught:
        parse(code(row[0]))
    assert row[1] in caught.value.reason
    assert caught.value.position is not None


def test_the_spellings_agree() -> None:
    from cluster import F

    spellings = dict(table("spelling", "example"))
    text = parse(code(spellings["text"]))
    assert as_filter(eval(code(spellings["Python"]), {"F": F})) == text
    start = code(spellings["JSON"]).removesuffix(", ...]}")
    assert json.dumps(text.to_json()).startswith(start)
    assert isinstance(text, Filter)
