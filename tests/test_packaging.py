"""The face of the repository: metadata, requirements, the hosted check, what SECURITY.md lists."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import onnxfq
from onnxfq.version import VERSION

ROOT = Path(__file__).parents[1]
PACKAGE = Path(onnxfq.__file__).parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    tomllib = pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return loaded


def runtime_requirements(asked: str, monkeypatch: pytest.MonkeyPatch) -> list[Requirement]:
    """Return what a build requires of onnxruntime when ONNXFQ_RUNTIME is `asked`."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setenv("ONNXFQ_RUNTIME", asked)
    import runtime_requirement

    return [Requirement(text) for text in runtime_requirement.dynamic_metadata({}, {})["dependencies"]]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "AMD64", "ARM64", "arm64"])
@pytest.mark.parametrize("system", ["linux", "win32", "darwin"])
def test_a_build_requires_one_onnxruntime(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each machine one requirement holds, by packaging: the GPU build on x86 with Linux or Windows."""
    place = {"sys_platform": system, "platform_machine": machine}
    required = runtime_requirements("gpu", monkeypatch)
    (held,) = [one.name for one in required if one.marker and one.marker.evaluate(place)]
    has_gpus = (system, machine) in {("linux", "x86_64"), ("win32", "AMD64")}
    assert held == ("onnxruntime-gpu" if has_gpus else "onnxruntime")
    (held_everywhere,) = runtime_requirements("cpu", monkeypatch)
    assert held_everywhere.name == "onnxruntime" and held_everywhere.marker is None
    assert {one.specifier for one in required} == {held_everywhere.specifier}


def test_another_runtime_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that the build does not know ends it, and names the values that it knows."""
    with pytest.raises(ValueError, match="'tpu': set it to gpu or cpu"):
        runtime_requirements("tpu", monkeypatch)


def test_no_extra_brings_a_second_runtime(project: dict[str, Any]) -> None:
    """No dependency and no extra of pyproject.toml names a package of ONNX Runtime."""
    extras = project["optional-dependencies"].values()
    named = {Requirement(text).name for part in (project["dependencies"], *extras) for text in part}
    assert "onnx" in named and not [name for name in named if name.startswith("onnxruntime")]


@pytest.mark.sample
def test_the_cpu_install_is_one_command_that_the_check_runs() -> None:
    """README has the command; `.ci/run` builds that wheel, and installs it alone in two Pythons."""
    assert "```sh\nONNXFQ_RUNTIME=cpu pip install .\n```" in (ROOT / "README.md").read_text(encoding="utf-8")
    check = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"^ONNXFQ_RUNTIME=cpu .*pip wheel .*\$work/cpu", check, re.MULTILINE)
    assert 'check_pythons.py "$work"/cpu/' in check


def test_classifiers_are_the_tried_pythons(project: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The Pythons of the metadata are those that the check of Pythons tries, from the oldest required."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "slow"))
    import check_pythons

    minors = re.findall(
        r"^Programming Language :: Python :: 3\.(\d+)$", "\n".join(project["classifiers"]), re.M
    )
    assert [int(minor) for minor in minors] == list(check_pythons.MINORS)
    assert project["requires-python"] == f">=3.{minors[0]}"


def test_the_hosted_check_is_the_local_one() -> None:
    """A workflow runs `.ci/run`, may only read, names actions by their commits, and has no secrets."""
    for path in (ROOT / ".github" / "workflows").iterdir():
        text = path.read_text(encoding="utf-8")
        flow = yaml.safe_load(text)
        assert flow["permissions"] == {"contents": "read"} and "secrets" not in text
        steps = [step for job in flow["jobs"].values() for step in job["steps"]]
        assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
        actions = [step["uses"] for step in steps if "uses" in step]
        assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in actions)
        assert not any("permissions" in job for job in flow["jobs"].values())


READERS = re.compile(
    r"yaml\.\w*load|torch\.load|np\.memmap|onnxfq\.support\.reading import"
    r"|onnxfq\.support\.(?:records|arrays) import (?:\([^)]*|[^\n(]*)\b(?:read|load)_"
)


@pytest.mark.sample
def test_security_lists_every_reader() -> None:
    """SECURITY.md names each module that reads or parses files of other people, and no other."""
    reading = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if READERS.search(path.read_text(encoding="utf-8"))
    }
    listed = re.findall(
        r"^\| `([\w/]+\.py)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(reading)


def test_no_module_reads_by_a_format_that_runs_code() -> None:
    """No module of the package imports what unpickles, or reads archives and documents of other kinds."""
    refused = {"marshal", "shelve", "xml", "tarfile"}
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not {name.partition(".")[0] for name in modules} & refused, path
        calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        # Own processes pickle among themselves, a cluster's too: SECURITY.md says whom to trust there.
        trusted = path.parent.name == "execution" or path.stem in ("workers", "serving")
        assert trusted or not calls & {"pickle.load", "pickle.loads", "pickle.Unpickler"}, path


def test_the_citation_names_the_version() -> None:
    """CITATION.cff has the fields that its format requires, and this version, licence and authors."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert cited["version"] == VERSION and f'license = "{cited["license"]}' in text
    assert [author["name"] for author in cited["authors"]] == re.findall(
        r'^authors = .*name = "(.*?)"', text, re.M
    )


def test_the_licence_names_all_that_the_wheel_carries(project: dict[str, Any]) -> None:
    """The expression has the licence of each file that `license-files` names (PEP 639)."""
    spelled = set(project["license"].split(" AND "))
    assert {name_licence(file) for file in project["license-files"]} == spelled
    assert "models/digits/NOTICE" in project["license-files"] and len(spelled) == 2


def name_licence(file: str) -> str:
    """Return the SPDX name of the licence that a file is or names."""
    text = (ROOT / file).read_text(encoding="utf-8")
    told = re.search(r"^Licence: .*\((CC BY.*)\)$", text, re.MULTILINE)
    if told:
        return "-".join(told[1].split())
    assert re.search(r"Apache License\s+Version 2\.0,", text)
    return "Apache-2.0"


def configure(folder: Path, **variables: str) -> str:
    """Return what CMake says of the library, with these variables of the environment."""
    command = shutil.which("cmake")
    if command is None or shutil.which("ninja") is None:
        pytest.skip("no CMake or Ninja")
    line = [command, "-G", "Ninja", "-S", str(ROOT / "custom_ops"), "-B", str(folder / "made")]
    ended = subprocess.run(line, env=os.environ | variables, capture_output=True, text=True)
    return " ".join(f"{ended.stdout} {ended.stderr}".split())


def test_a_machine_without_a_compiler_is_told_what_to_install(tmp_path: Path) -> None:
    """The first and only error names the packages of each system."""
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is not None:
            (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    said = configure(tmp_path, PATH=str(tmp_path), CXX="", CC="")
    assert (
        said.count("CMake Error") == 1
        and "needs a C++17 compiler, and there is none; install it with" in said
    )


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler")
def test_a_build_for_cpus_compiles_no_kernel_for_gpus(tmp_path: Path) -> None:
    """The variable that asks for the runtime of CPUs leaves the CUDA compiler out."""
    assert "without CUDA kernels" in configure(tmp_path, ONNXFQ_RUNTIME="cpu")
    assert "kernels for" in configure(tmp_path, ONNXFQ_RUNTIME="gpu")
