"""The documents are true: names, defaults, links and targets in them are those of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from docsite import packages_page, problems_page
from docsite.pages import FOLDER
from docsite.pages import PAGES as MADE
from gpuagent.domain.deviceplugin.allocate import granted
from gpuagent.domain.deviceplugin.located import Located
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.gpus.health_verdict import APPLICATION_XIDS
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import PROMISES, Kind, Mode, Resources
from gpuagent.domain.snapshot import snapshot
from gpuagent.metrics.families import CHAPTERS
from gpuagent.metrics.meter import Metrics
from gpuagent.metrics.reading import Sources
from gpuagent.simulation import boxes
from tests.contract import contract_page as contract
from tests.unit.domain.builders import state_of

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
PROBLEMS = (ROOT / "docs/problems.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "docs/security.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXCLUSIVE = "example.com/gpu"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- reading Markdown ------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def headings(text: str) -> list[str]:
    return [
        line.lstrip("#").strip().replace("`", "") for line in without_code(text).splitlines() if line.startswith("#")
    ]


def anchors(text: str) -> set[str]:
    """As GitHub makes them: lower case, punctuation gone, blanks become hyphens."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(text)}


def section(text: str, heading: str) -> str:
    """What stands under a heading, to the next one of the same level or above."""
    level = next(len(line) - len(line.lstrip("#")) for line in text.splitlines() if line.lstrip("#").strip() == heading)
    _, _, rest = text.partition(f"{'#' * level} {heading}\n")
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def table(text: str, first_column: str) -> list[list[str]]:
    """Cells of the rows of the table whose first heading is `first_column`."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith(f"| {first_column} |"))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", target):
            yield target


def strings_given_to(path: str, function: str) -> set[str]:
    """Constant strings that are the first argument of a call of `function` in a source file."""
    found = set()
    for call in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and call.args:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            value = call.args[0]
            if name == function and isinstance(value, ast.Constant) and isinstance(value.value, str):
                found.add(value.value)
    return found


# -- pages made from the code ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_the_pages_made_from_the_code_are_those_of_the_code(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == MADE[name](), "run make generate"


NAMES_ON_OBJECTS = re.compile(
    r"((ack\.node|aliyun\.(com|accelerator)/|gpuagent\.io/|gpu-topology|topology\.kubernetes\.io/gpu|gpushare\.|"
    r"scheduler\.framework|cgpu\.disable)[\w./-]*|[\w-]+\.gpuagent\.io)(?<![/_])"
)


def test_every_label_and_annotation_of_the_code_is_in_the_reference():
    page = quoted(MADE["labels-and-annotations.md"]())
    written = {
        value.value
        for folder in ("gpuagent", "scheduler/gpuscheduler")
        for path in (ROOT / folder).rglob("*.py")
        for value in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and NAMES_ON_OBJECTS.fullmatch(value.value)
    }
    assert len(written) > 15
    assert written - set(page) == set()


# -- modes and what containers get --------------------------------------------------------------------------------


def test_the_table_of_modes_is_that_of_the_code():
    rows = {quoted(row[0])[0]: row for row in table(section(REFERENCE, "Modes"), "label value")}
    assert rows.keys() == {str(mode) for mode in Mode}
    for mode in Mode:
        resource_kinds = [name for name in Resources(EXCLUSIVE).in_mode(mode) if name != EXCLUSIVE]
        docstring = [name for name in quoted(rows[mode][1]) if "/" in name]
        assert docstring == resource_kinds, mode
        promised = ", ".join(sorted(PROMISES[mode]))
        assert rows[mode][2] == promised if promised else rows[mode][2].startswith("none"), mode
        assert rows[mode][3].startswith("where the node has") == bool(promised), mode


def test_the_environment_of_a_container_is_documented():
    gpu = Gpu(uuid="GPU-0a", index=0, minor=0, pci_bus_id="", model="", memory_mib=81920)
    snap = snapshot(state_of(Mode.SHARE, [gpu]))
    at = Located(Kind.MEMORY_SHARE, {gpu.uuid: 1}, listed=True)
    share = granted("aliyun.com/gpu-mem", at, snap, DeviceStrategy.DEVICE_NODES)
    shown = granted("aliyun.com/gpu-mem", at, snap, DeviceStrategy.DEVICE_NODES, visible_gpus=[gpu.uuid])
    rows = table(section(REFERENCE, "What a container receives"), "variable")
    assert {quoted(row[0])[0] for row in rows} == {*share.env, *shown.env}


# -- problems, events, metrics, boxes (refusals: test_troubleshooting.py) -----------------------------------------------------------------------


def test_every_problem_has_its_section_with_cause_effect_remedy_and_alert():
    reasons = strings_given_to("gpuagent/domain/status/problems.py", "Problem")
    assert len(reasons) > 10
    assert reasons <= set(headings(PROBLEMS))
    for reason in reasons:
        said = re.findall(r"^\*\*(\w+):\*\* \S", section(PROBLEMS, reason), re.MULTILINE)
        assert [word for word in said if word != "Background"] == ["Alert", "Cause", "Effect", "Remedy"], reason
        assert "Background" not in said[:-1], f"{reason}: who comes from an alert reads what ends it before"


def test_no_section_of_a_problem_ends_with_a_colon():
    """Commands stand before the remedy, so a colon at its end would announce nothing."""
    sections = re.split(r"^#+ ", PROBLEMS, flags=re.MULTILINE)
    assert len(sections) > 30
    assert not [text.partition("\n")[0] for text in sections if text.rstrip().endswith(":")]


def test_each_row_of_a_table_has_as_many_cells_as_its_head():
    for page in PAGES:
        cells_of_head = 0
        for line in page.read_text(encoding="utf-8").splitlines():
            if not line.startswith("|"):
                cells_of_head = 0
                continue
            cells = len(re.findall(r"(?<!\\)\|", line)) - 1
            cells_of_head = cells_of_head or cells
            assert cells == cells_of_head, f"{name_of(page)}: {line}"


def test_the_problems_that_examples_of_documents_show_are_problems():
    """Of `kubectl inspect cgpu --health`, of `gpuagent status`, and of the node's condition."""
    shown = set()
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        shown.update(re.findall(r"^\S+ .*(?:blocking|warning|info)  +([A-Z]\w+): ", text, re.MULTILINE))
        shown.update(re.findall(r"^! ([A-Z]\w+): ", text, re.MULTILINE))
        shown.update(re.findall(r"\b([A-Z]\w+) \((?:blocking|warning|info)\): ", text))
    assert shown >= {"GPUUnhealthy", "GPUFenced", "IsolationMissing"}
    assert shown <= set(headings(PROBLEMS))


def test_a_problem_without_words_and_words_without_a_problem_are_found(monkeypatch, tmp_path):
    texts = problems_page.TEXTS.read_text(encoding="utf-8")
    other = tmp_path / "problems.toml"
    other.write_text(texts.replace("section.NoGPUs]", "section.NoDriver]"), encoding="utf-8")
    monkeypatch.setattr(problems_page, "TEXTS", other)
    with pytest.raises(ValueError, match="NoDriver, NoGPUs$"):
        problems_page.page()


OF_PODS = (
    "allocator/preferred_allocation",
    "allocator/refusal_events",
    "domain/deviceplugin/assignment",
    "domain/deviceplugin/job",
)
"""The modules that send Events about requests."""


def test_every_event_about_a_request_is_in_the_reference():
    refused = [strings_given_to(f"gpuagent/{module}.py", "Announcement") for module in OF_PODS]
    assert all(refused)
    assert set().union(*refused) <= set(quoted(section(REFERENCE, "What the node shows")))


def test_the_xids_that_cost_no_gpu_are_documented():
    sentence = re.search(r"XIDs ([^.]*) are an application's own fault", section(PROBLEMS, "GPUUnhealthy"))
    assert sentence
    assert {int(number) for number in re.findall(r"\d+", sentence[1])} == APPLICATION_XIDS


def test_every_metric_is_documented():
    """The reference is that of the code's table, and the table is what the page shows."""
    metrics = Metrics()
    gpu = Gpu(uuid="GPU-0a", index=0, minor=0, pci_bus_id="", model="", memory_mib=81920)
    state = state_of(Mode.DEFAULT, [gpu])
    metrics.show(Sources(state=lambda: state, node_name="n"))
    shown = re.findall(r"^# TYPE (\S+) (\S+)$", metrics.page().decode(), re.MULTILINE)
    listed = {(one.name, one.kind) for families in CHAPTERS.values() for one in families}
    assert {(name, kind) for name, kind in shown if not name.startswith("process_")} == listed


def test_every_check_of_the_contract_is_documented():
    """The page is what the tests say, and no number is left out."""
    page = (ROOT / "docs/reference/contract.md").read_text(encoding="utf-8")
    assert contract.page() == page, "run make generate"
    numbers = {int(number) for number in re.findall(r"^\| (\d{2,3}) \|", page, re.MULTILINE)}
    assert numbers == {*range(1, max(numbers) + 1)}


def test_every_right_has_its_reason():
    """What the service account of operations.md may do is in security.md's table, verb by verb."""
    reasons = {}
    for row in table(section(SECURITY, "Rights at the API server"), "resource"):
        reasons.setdefault(quoted(row[0])[0], set()).update(row[1].split(", "))
        assert len(row[2]) > 10
    (manifest,) = re.findall(r"```yaml\n(apiVersion: v1\nkind: ServiceAccount.*?)```", OPERATIONS, re.DOTALL)
    rules = [rule for document in yaml.safe_load_all(manifest) for rule in document.get("rules", ())]
    assert rules
    for rule in rules:
        for resource in rule["resources"]:
            assert set(rule["verbs"]) <= reasons[resource], resource


def test_every_page_is_documented():
    source = (ROOT / "gpuagent/agent/reports.py").read_text(encoding="utf-8")
    pages = {"/", *re.findall(r'"(/[a-z.]+)":', source)}
    assert len(pages) > 1
    assert {quoted(row[0])[0] for row in table(section(REFERENCE, "HTTP pages"), "page")} == pages


def test_every_box_is_documented():
    assert set(boxes.names()) <= set(quoted(without_code(section(OPERATIONS, "Simulated boxes"))))


# -- links, targets, words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_every_page_is_reached_from_the_readme():
    reached, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        targets = ((page.parent / link.partition("#")[0]).resolve() for link in links(page) if link[0] != "#")
        new |= {target for target in targets if target.suffix == ".md" and target.exists()} - reached
    assert set(PAGES) - reached == set()


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/img").glob("*.svg")), ids=lambda path: path.name)
def test_every_picture_is_shown_and_described(picture):
    shown = [link for page in PAGES for link in links(page) if (page.parent / link).resolve() == picture]
    assert shown
    assert {"<title", "<desc", 'role="img"'} <= set(re.findall(r'<title|<desc|role="img"', picture.read_text()))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_that_is_named_exists(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`(?:[A-Z]+=\S+ )?make ([a-z0-9-]+)", text) + re.findall(
        r"^make ([a-z0-9-]+)", text, re.MULTILINE
    )
    assert set(named) <= targets()


def test_tables_of_the_code_that_contributors_are_sent_to_exist():
    named = set(re.findall(r"`(_[A-Z_]+|PROMISES)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "gpuagent").rglob("*.py"))
    assert len(named) > 3
    assert {name for name in named if not re.search(rf"^{name}\b.*=", code, re.MULTILINE)} == set()


def test_every_make_target_is_documented():
    rows = table((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "target")
    assert {quoted(row[0])[0].removeprefix("make ") for row in rows} == targets()


def test_the_steps_of_the_demo_are_counted():
    tree = ast.walk(ast.parse((ROOT / "demo/__main__.py").read_text(encoding="utf-8")))
    steps = [call for call in tree if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "step"]
    assert f"`make demo LONG=1` has all {len(steps)} steps" in README


@pytest.mark.parametrize("program", packages_page.PROGRAMS)
def test_every_package_says_what_it_answers(program):
    """The page of packages has every docstring, or its generator fails."""
    found = dict(packages_page.packages(program))
    assert len(found) >= 3
    for folder, tree in found.items():
        assert ast.get_docstring(tree), folder
        if program == "gpuagent":
            assert all(isinstance(node, ast.Expr | ast.Assign) for node in tree.body), f"logic in {folder}/__init__.py"


def test_no_folder_is_a_heap():
    parts = (
        "gpuagent",
        "standin",
        "bench",
        "demo",
        "kubectl/inspectcgpu",
        "installer/gpuisolation",
        "scheduler/gpuscheduler",
    )
    for folder in {path.parent for part in parts for path in (ROOT / part).rglob("*.py")} - {ROOT / "gpuagent/_pb"}:
        found = [path for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(found) <= (4 if folder == ROOT / "gpuagent" else 16), folder


def test_the_glossary_has_at_most_fifteen_words():
    page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| (?!term )\w", page, flags=re.MULTILINE)) <= 15


def test_every_record_of_a_decision_is_in_the_index():
    folder = ROOT / "docs/adr"
    assert {path.name for path in folder.glob("0*.md")} == set(links(folder / "README.md"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_is_named_exists(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:gpuagent|standin|demo|bench|tests|examples|docs|proto)/[A-Za-z0-9_/.-]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(("page", "most"), [("README.md", 120), ("docs/run-a-workload.md", 100)])
def test_what_a_new_user_reads_first_is_short(page, most):
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= most
