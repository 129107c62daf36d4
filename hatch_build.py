"""Compiles the modules that a replay spends its time in, where a build asks for it.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 python -m pip install .

mypyc (https://mypyc.readthedocs.io) turns the very same sources into C extension modules, which lie
beside them in the wheel and are imported in their place. Nothing is written into the clone.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Compiled, below ``src/kvhouse``.
COMPILED = (
    "core/*.py",
    "costs/line.py",
    "costs/reading.py",
    "costs/roofline.py",
    "replayer/arrivals.py",
    "replayer/drive.py",
    "replayer/leaping.py",
    "replayer/live.py",
    "replayer/records.py",
    "replayer/stretches.py",
)
#: Not compiled all the same: a subclass of ``AssertionError``, and what classes elsewhere extend.
INTERPRETED = tuple(f"core/{name}.py" for name in ("__init__", "check", "keys", "step"))

# Types were checked before; here only those of kvhouse are followed, and nothing that is compiled
# calls the engine.
_MYPY = """
[mypy]
follow_imports = skip
ignore_missing_imports = True
mypy_path = {source}
cache_dir = {cache}
[mypy-kvhouse.*]
follow_imports = silent
[mypy-kvhouse.engine.*]
follow_imports = skip
"""


class CompiledModules(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile them before the wheel is put together.

        Raises:
            SystemExit: The install is to be editable, and would not use them; or there is no C
                compiler. An installer shows that as the one line that it is.
        """
        if version == "editable":
            raise SystemExit("an editable install runs the sources: install without -e to compile")
        require_compiler()
        self._folder = TemporaryDirectory(prefix="kvhouse-compiled-")
        made = Path(self._folder.name, "made")
        compile_into(made, Path(self.root, "src"))
        build_data["force_include"].update(
            {str(path): str(path.relative_to(made)) for path in made.rglob("*.so")}
        )
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled; the wheel has it now."""
        del version, build_data, artifact_path
        self._folder.cleanup()


def require_compiler() -> None:
    """See that there is a C compiler, before mypyc has worked for half a minute.

    Raises:
        SystemExit: There is none where Python's own build, or ``CC``, names one.
    """
    command = os.environ.get("CC") or sysconfig.get_config_var("CC")
    if command and not shutil.which(shlex.split(command)[0]):
        raise SystemExit(
            f"compiling kvhouse needs a C compiler, and there is no {command}: install gcc or name "
            "yours in CC, or leave HATCH_BUILD_HOOK_ENABLE_CUSTOM out"
        )


def compile_into(made: Path, source: Path) -> None:
    """Compile the modules of ``source`` into a folder, laid out as they are to be installed."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    package = source / "kvhouse"
    left = {package / name for name in INTERPRETED}
    modules = sorted(path for name in COMPILED for path in package.glob(name) if path not in left)
    work = made.with_name("work")
    config = made.with_name("mypy.ini")
    config.write_text(_MYPY.format(source=source, cache=work / "cache"))
    extensions = mypycify(
        [f"--config-file={config}", *map(str, modules)],
        opt_level="2",
        debug_level="0",
        target_dir=str(work),
    )
    distribution = Distribution({"name": "kvhouse", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(made), str(work)
    command.ensure_finalized()
    command.run()
