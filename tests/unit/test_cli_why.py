"""`kittiwake why`: what it reads, asks and prints, how it ends; and the README's examples of it."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import actors.asking
from actors.cli import main
from cluster.errors import KittiwakeError
from cluster.language import parse
from cluster.testing import LocalCluster

README = Path(__file__).parents[2] / "README.md"

SUBSCRIBER: dict[str, Any] = {
    "client_id": "lab",
    "client": 1 << 20,
    "connected": True,
    "reads": True,
    "credit": True,
    "queued": 0,
    "sent": 5,
    "consumed": 3,
    "held_runs": 0,
    "moved": False,
    "subscriptions": 1,
    "subscription": {
        "id": 1 << 40,
        "number": 0,
        "policy": "block",
        "asked_us": 1,
        "change": 1,
        "confirmed": True,
        "normal_form": "",
        "dropped_lately": {},
    },
    "notification": None,
}


class FakeAdmin:
    """Answers `why`, and keeps what it was asked."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.answer = answer or {
            "matches": True,
            "filter": "a > 1",
            "explanation": None,
            "delivery": {"code": "delivered", "detail": "written"},
            "subscriber": SUBSCRIBER,
        }
        self.asked: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.refusal: str | None = None

    async def why(self, attributes: dict[str, Any], **who: Any) -> dict[str, Any]:
        self.asked.append((attributes, who))
        if self.refusal is not None:
            raise KittiwakeError(self.refusal)
        return self.answer


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(actors.asking, "open_admin", lambda config: fake)
    return fake


def why(*arguments: str, stdin: str | bytes = "") -> Result:
    result = CliRunner().invoke(main, ["why", *arguments], input=stdin, catch_exceptions=False)
    assert "Traceback" not in result.output
    return result


def test_a_filter_needs_no_cluster(admin: FakeAdmin) -> None:
    result = why("no2 > 40", "-", stdin='{"no2": 38.0}')
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:3] == [
        "matches:  no",
        "filter:   no2 > 40",
        "false   no2 > 40  -- no2 is the number 38.0: 2 below 40",
    ]
    assert why("no2 > 40", "-", stdin='{"no2": 41}').exit_code == 0
    assert why("no2 > 40", "-", stdin="{}").exit_code == 1, "unknown is no match"
    assert admin.asked == []


def test_a_filter_needs_nothing_of_the_broker() -> None:
    code = (
        "import sys\n"
        "for name in ('ray', 'numpy', 'numba', 'yaml', 'uvloop', 'sortedcontainers'): sys.modules[name] = None\n"
        "from actors.cli import main\n"
        "main(['why', 'no2 > 40', '-'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input='{"no2": 41}', capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("matches:  yes\n")


def test_nested_objects_are_flattened_as_for_publishing() -> None:
    assert why("wind.speed > 3", "-", stdin='{"wind": {"speed": 3.5}}').exit_code == 0


def test_as_json(tmp_path: Path) -> None:
    path = tmp_path / "reading.json"
    path.write_text('{"a": 1}')
    result = why("a > 1", str(path), "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["matches"] is False
    assert document["explanation"]["reason"] == "equal"
    assert document["delivery"] is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (b"\xff\xfe{", "not JSON"),
        ('{"attributes": {"a": 1}, "sequence": "7"}', "Expected `int`"),
        ('{"attributes": {"a": 1}, "publisher": "roof"}', "one of them is missing"),
        ('{"a": ' + "[" * 100_000, "not JSON"),
        ('{"a": ' + "9" * 10_000 + "}", "not JSON"),
        ('{"a": "' + "x" * (1 << 20) + '"}', "longer than 1048576 bytes"),
    ],
)
def test_what_is_no_publication_has_no_answer(data: str | bytes, said: str) -> None:
    result = why("a > 1", "-", stdin=data)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('{"a": NaN}', "only finite numbers"),
        ('{"a": [1]}', "attribute 'a' is a list"),
        ('{"": 1}', "name is empty"),
        ('{"a": 18446744073709551616}', "integers go from"),
        ('{"a": "\\ud800"}', "lone surrogate"),
    ],
)
def test_what_the_matchers_would_refuse_is_said_here(data: str, said: str, admin: FakeAdmin) -> None:
    for subscription in ("a > 1", "lab/0"):
        result = why(subscription, "-", stdin=data)
        assert result.exit_code == 1
        assert "delivery: rejected: " in result.stdout
        assert said in result.stdout
    assert admin.asked == []


def test_a_filter_that_is_none_is_shown_with_its_place() -> None:
    result = why("a > ", "-", stdin="{}")
    assert result.exit_code == 2
    assert "\n      ^" in result.stderr


def test_there_must_be_a_file() -> None:
    assert why("a > 1", "/nowhere/reading.json").exit_code == 2
    assert why("a > 1").exit_code == 2


@pytest.mark.parametrize(
    ("subscription", "who"),
    [
        ("lab/0", {"client_id": "lab", "number": 0}),
        ("a/b/12", {"client_id": "a/b", "number": 12}),
        ("1099511627776", {"subscription": 1 << 40}),
    ],
)
def test_a_subscription_is_asked_of_the_cluster(subscription: str, who: dict[str, Any], admin: FakeAdmin) -> None:
    line = json.dumps({"publisher": "roof", "sequence": 7, "time": 1.5, "filters": [0], "attributes": {"a": 2}})
    assert why(subscription, "-", stdin=line).exit_code == 0
    assert why(subscription, "-", "--publisher", "attic", "--sequence", "9", stdin='{"a": 2}').exit_code == 0
    assert why(subscription, "-", stdin='{"a": 2, "publisher": "mine"}').exit_code == 0
    assert admin.asked == [
        ({"a": 2}, {**who, "publisher": "roof", "sequence": 7}),
        ({"a": 2}, {**who, "publisher": "attic", "sequence": 9}),
        ({"a": 2, "publisher": "mine"}, {**who, "publisher": "", "sequence": 0}),
    ]


def test_how_the_subscriber_stands_is_shown(admin: FakeAdmin) -> None:
    subscription = SUBSCRIBER["subscription"] | {"confirmed": False, "dropped_lately": {"drop_oldest": 1200}}
    admin.answer["subscriber"] = SUBSCRIBER | {
        "reads": False,
        "credit": False,
        "queued": 1500,
        "held_runs": 2,
        "subscription": subscription,
    }
    assert why("lab/0", "-", stdin='{"a": 2}').stdout.splitlines() == [
        "matches:  yes",
        "delivery: delivered: written",
        "client:   lab, 1,500 queued, 2 of 5 sent not consumed, no credit left, does not read its socket, "
        "holds up publishers in 2 places",
        "subscription: 0 (id 1099511627776), policy block, not in force yet",
        "dropped of late: 1,200 by drop_oldest",
    ]


def test_a_long_explanation_is_cut(admin: FakeAdmin) -> None:
    found = parse(f"not ({' and '.join(f'a{number} > 1' for number in range(60))})").explain({})
    operands = (found.operands[0],) * 10
    admin.answer["explanation"] = msgspec.structs.replace(found, kind="or", operands=operands).to_json()
    lines = why("lab/0", "-", stdin='{"a": 2}').stdout.splitlines()
    assert 200 <= len(lines) < 210
    assert lines[-1].endswith(" more lines; --json has all of it")


def test_an_unknown_subscription_has_no_answer(admin: FakeAdmin) -> None:
    unknown = {"code": "unknown_client", "detail": "no such client is logged in"}
    admin.answer = {"matches": None, "filter": None, "explanation": None, "delivery": unknown}
    result = why("lab/0", "-", stdin='{"a": 2}')
    assert (result.exit_code, result.stdout) == (2, "delivery: unknown_client: no such client is logged in\n")


def test_a_cluster_that_does_not_answer_is_no_mismatch(admin: FakeAdmin, tmp_path: Path) -> None:
    admin.refusal = "no answer within 2000 ms from connection_point 0"
    result = why("lab/0", "-", stdin='{"a": 2}')
    assert result.exit_code == 2
    assert "no answer within 2000 ms from connection_point 0" in result.stderr


def test_no_cluster_is_no_mismatch(tmp_path: Path) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text(f"data_directory: {tmp_path}/nothing\n")
    result = why("lab/0", "-", "--config", str(config), stdin='{"a": 2}')
    assert result.exit_code == 2
    assert "no cluster 'local' runs here" in result.stderr


# The README ----------------------------------------------------------------------------------------------------------


def examples() -> list[tuple[str, str]]:
    """Return the commands of the README's section and what it shows that they print."""
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- why:begin -->\n(.*)<!-- why:end -->", text, re.DOTALL)
    assert found is not None
    blocks = re.findall(r"```console\n(.*?)```", found[1], re.DOTALL)
    return [
        (command, output)
        for block in blocks
        for command, _, output in (example.partition("\n") for example in re.split(r"^\$ ", block, flags=re.M)[1:])
    ]


def run_example(command: str) -> str:
    """Run `echo '...' | kittiwake why ...`, or without the echo; return what it prints."""
    before, pipe, after = command.partition(" | ")
    stdin = shlex.split(before)[1] if pipe else ""
    words = shlex.split(after if pipe else command)
    assert words[:2] == ["kittiwake", "why"]
    return why(*words[2:], stdin=stdin).stdout


def test_the_first_example_of_the_readme() -> None:
    command, output = examples()[0]
    assert run_example(command) == output


def test_the_second_example_of_the_readme(admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, output = examples()[1]

    async def cluster_says() -> dict[str, Any]:
        async with LocalCluster() as cluster, cluster.connect("lab") as lab, cluster.connect("roof") as roof:
            await lab.subscribe("no2 > 40 and station starts_with 'Pza'")
            for no2 in (45.0, 46.0, 38.0):
                await roof.publish({"station": "Pza. de Espana", "no2": no2})
            reading = {"station": "Pza. de Espana", "no2": 38.0}
            return await cluster.admin.why(reading, client_id="lab", number=0, publisher="roof", sequence=3)

    admin.answer = asyncio.run(cluster_says())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reading.json").write_text('{"station": "Pza. de Espana", "no2": 38.0}')
    ids = re.compile(r"\(id \d+\)")  # they count on from the incarnation
    assert ids.sub("(id)", run_example(command)) == ids.sub("(id)", output)
    asked = {"client_id": "lab", "number": 0, "publisher": "roof", "sequence": 3}
    assert admin.asked == [({"station": "Pza. de Espana", "no2": 38.0}, asked)]


def test_the_readme_names_every_code() -> None:
    import cluster.verdict

    codes = set(re.findall(r'Verdict\(\s*"(\w+)"', Path(cluster.verdict.__file__).read_text(encoding="utf-8")))
    assert len(codes) > 10
    text = README.read_text(encoding="utf-8").partition("<!-- why:begin -->")[2].partition("<!-- why:end -->")[0]
    assert codes <= set(re.findall(r"`(\w+)`", text))
    assert codes <= set(re.findall(r"^    (\w+) ", cluster.verdict.__doc__ or "", flags=re.M))
