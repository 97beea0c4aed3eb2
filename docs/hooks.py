"""Fills pages from the files that own a fact, so that none is written down twice.

    <!-- section: README.md Limits -->          what stands under that heading
    <!-- file: CONTRIBUTING.md -->              the file, without its title
    <!-- head: kernels/add.cu -->               the head of a kernel file, and its page of measurements
    <!-- errors -->                             every class of error with its recorded messages
    <!-- variants -->                           the table of variants that a developer can force
    <!-- kernels -->                            a list of the kernels' pages, by operation
    <!-- measurements -->                       a list of the pages of measurements

A line above it that begins with "In the repository: " is for readers of the file: the site leaves it out.

A kernel without a page of its own in docs/how gets one of its head alone, a notebook one of its cells.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DIRECTIVE = re.compile(
    r"^(?:In the repository: .+\n)?"
    r"<!-- (section|file|head|errors|variants|kernels|measurements)(?:: (\S+))?(?: ([^>]+))? -->$",
    re.MULTILINE,
)
# Where a file of the repository stands on the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "../CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "notebooks/index.md",
}


# By the beginnings of the names of their kernels; the longest that fits counts.
OPERATIONS = {
    "add": "add",
    "softmax": "softmax and log_softmax",
    "softmax_backward": "Gradients",
    "activation_backward": "Gradients",
    "matmul": "matmul",
    "grouped_matmul": "grouped_matmul",
}
NOTEBOOKS = "examples/notebooks"
FOLDED = '<details markdown="1">\n<summary>code</summary>\n\n{}\n\n</details>'


def kernels() -> list[Path]:
    return sorted((ROOT / "kernels").glob("*.cu"))


def by_operation(names: list[str]) -> dict[str, list[str]]:
    """Names of kernels under the heading of their operation; of other pages under a heading of their own."""
    groups: dict[str, list[str]] = {}
    for name in names:
        fitting = [begin for begin in OPERATIONS if name.startswith(begin)]
        heading = OPERATIONS[max(fitting, key=len)] if fitting else "Whole models, host, CPU and build"
        groups.setdefault(heading, []).append(name)
    order = [*dict.fromkeys(OPERATIONS.values())]
    return dict(sorted(groups.items(), key=lambda group: order.index(group[0]) if group[0] in order else -1))


def notebooks() -> list[Path]:
    return sorted((ROOT / NOTEBOOKS).glob("*.ipynb"))


def page_of(kernel: Path) -> str:
    return f"how/{kernel.stem}.md"


def measured() -> list[str]:
    """Names of the pages in docs/measurements but the first."""
    pages = (ROOT / "docs/measurements").glob("*.md")
    return sorted(page.stem for page in pages if page.stem != "index")


def on_config(config: Any) -> Any:
    for entry in config["nav"]:
        if "How it works" in entry:
            groups = by_operation([kernel.stem for kernel in kernels()])
            entry["How it works"] += [
                {heading: [f"how/{name}.md" for name in names]} for heading, names in groups.items()
            ]
        if "Measurements" in entry:
            entry["Measurements"] += [
                {heading: [f"measurements/{name}.md" for name in names]}
                for heading, names in by_operation(measured()).items()
            ]
        if "Performance" in entry:
            # The newest first, as benchmarks/pages.py lists them.
            listed = re.findall(r"\((performance/\S+\.md)\)", (ROOT / "docs/performance.md").read_text())
            entry["Performance"] += [{"Devices": listed}]
        if "Notebooks" in entry:
            entry["Notebooks"] += [f"notebooks/{notebook.stem}.md" for notebook in notebooks()]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    for kernel in kernels():
        if files.get_file_from_path(page_of(kernel)) is None:
            name = f"kernels/{kernel.name}"
            content = f"# {kernel.stem}\n\n<!-- head: {name} -->\n"
            files.append(File.generated(config, page_of(kernel), content=content))
    for notebook in notebooks():
        text, pictures = page_of_notebook(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def page_of_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Its cells and their outputs as Markdown, and the pictures that it shows."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(json.loads(path.read_text())["cells"], 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        code = f"```python\n{source}\n```"
        # As in JupyterLab: a cell that only draws is folded.
        folded = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        parts.append(FOLDED.format(code) if folded else code)
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{number}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![what the cell draws]({name})")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"``` {{ .text .output }}\n{text.rstrip()}\n```")
    return linked("\n\n".join(parts) + "\n", f"notebooks/{path.stem}.md"), pictures


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    def filled(match: re.Match[str]) -> str:
        kind, name, argument = match.groups()
        if kind == "section":
            return linked(section(name, argument), page.file.src_uri)
        if kind == "file":
            return linked((ROOT / name).read_text().split("\n", 1)[1], page.file.src_uri)
        if kind == "head":
            return f'``` {{ .text .output title="{name}" }}\n{head(name)}\n```{link(name)}'
        if kind == "measurements":
            return "\n".join(
                f"- {heading}: " + ", ".join(f"[{stem}]({stem}.md)" for stem in stems)
                for heading, stems in by_operation(measured()).items()
            )
        return {"errors": errors, "variants": variants, "kernels": listed}[kind]()

    return DIRECTIVE.sub(filled, markdown)


def section(name: str, heading: str) -> str:
    """What stands under a heading, up to the next of its level."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n", text := (ROOT / name).read_text(), re.MULTILINE)
    if found is None:
        raise PluginError(f"{name} has no heading {heading!r}")
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", without_code(rest), re.MULTILINE)
    return rest[: following.start()] if following else rest


def without_code(text: str) -> str:
    """The text with blocks of code blanked out: a comment in them is no heading."""
    return re.sub(
        r"^```.*?^```", lambda block: re.sub("#", " ", block[0]), text, flags=re.MULTILINE | re.DOTALL
    )


def head(name: str) -> str:
    """The comment before the first line of code, without its slashes and its list of targets."""
    lines = []
    for line in (ROOT / name).read_text().splitlines():
        if not line.startswith("//"):
            break
        lines.append(line[3:])
    return "\n".join(lines[1:]).strip("\n")


def link(name: str) -> str:
    """To a kernel's page of measurements."""
    stem = Path(name).stem
    return f"\n\n[What was measured](../measurements/{stem}.md)." if stem in measured() else ""


def linked(text: str, page: str) -> str:
    """Links to files of the repository as links to their pages, or as names where they have none."""
    up = "../" * page.count("/")

    def replaced(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target in PAGES:
            return f"[{words}]({up}{PAGES[target]})"
        if target.startswith("docs/") and target.endswith(".md"):
            return f"[{words}]({up}{target.removeprefix('docs/')})"
        if target.removeprefix("notebooks/").endswith(".ipynb"):
            return f"[{words}]({up}notebooks/{Path(target).stem}.md)"
        return (
            words if words.startswith("`") else f"{words} (`{target}`)" if words != target else f"`{target}`"
        )

    text = re.sub(r"(!\[[^\]]*\]\()docs/", rf"\1{up}", text)
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", replaced, text)


def listed() -> str:
    lines = []
    for heading, names in by_operation([kernel.stem for kernel in kernels()]).items():
        lines += [f"### {heading}", ""]
        for name in names:
            # The first paragraph's first sentence: what the kernel computes.
            paragraph = " ".join(head(f"kernels/{name}.cu").split("\n\n")[0].split())
            sentence = re.split(r"(?<=[.:])\s", paragraph, maxsplit=1)[0].rstrip(":.")
            lines.append(f"- [{name}]({name}.md): {sentence}")
        lines.append("")
    return "\n".join(lines)


def errors() -> str:
    """From src/error/messages.txt, whose lines are `Class: message`."""
    import tilewise

    messages: dict[str, list[str]] = {}
    for line in (ROOT / "src/error/messages.txt").read_text().splitlines():
        family, _, message = line.partition(": ")
        messages.setdefault(family, []).append(message)
    parts = []
    for family, lines in messages.items():
        error = getattr(tilewise, f"{family}Error")
        bases = ", ".join(base.__name__ for base in error.__bases__)
        parts += [f"## {error.__name__}({bases})\n\n{error.__doc__}\n"]
        parts += ["``` { .text .wrapped }", "\n\n".join(lines), "```", ""]
    return "\n".join(parts)


def variants() -> str:
    from tilewise import _core

    table: dict[str, Any] = {**_core.variants()}
    lines = ["| operation | variant | parameter | what it does |", "| --- | --- | --- | --- |"]
    for op, entries in table.items():
        for entry in entries:
            values = ", ".join(map(str, entry.get("values", [])))
            parameter = f"{entry['parameter']}: {values}" if entry.get("parameter") else ""
            lines.append(f"| {op} | `{entry['name']}` | {parameter} | {entry['about']} |")
    return "\n".join(lines)
