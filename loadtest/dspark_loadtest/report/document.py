"""A document of headings, paragraphs, tables and pictures, and its two renderings."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid #d8dee4}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid #e4e8ec;text-align:right}
th:first-child,td:first-child{text-align:left}
.warn{border-left:4px solid #d55e00;background:#fff4ec;padding:.5rem 1rem}
figure{margin:1rem 0}svg{max-width:100%;height:auto}
"""


@dataclass(frozen=True)
class Table:
    """Rows of text below a header; the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure: its file beside the document, its caption, and its SVG."""

    file: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Heading:
    """Begins a section."""

    text: str


@dataclass(frozen=True)
class Warn:
    """A paragraph that must not be overlooked."""

    text: str


Block = str | Table | Picture | Heading | Warn


@dataclass
class Document:
    """A title and what follows it; a plain string is a paragraph."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> None:
        """Append blocks."""
        self.blocks += blocks

    def markdown(self) -> str:
        """Render as Markdown; pictures are links to their files."""
        return "\n\n".join([f"# {self.title}", *(_markdown(block) for block in self.blocks)]) + "\n"

    def html(self) -> str:
        """Render as one HTML file that needs nothing else."""
        body = "\n".join(_html(block) for block in self.blocks)
        title = html.escape(self.title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
        )


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {text}"
        case Warn(text):
            return f"> **{text}**"
        case Table(header, rows):
            rule = ["---", *["---:"] * (len(header) - 1)]
            lines = [header, rule, *rows]
            return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        case Picture(file, caption, _):
            return f"![{caption}]({file})"
        case _:
            return str(block)


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"
        case Warn(text):
            return f'<p class="warn">{html.escape(text)}</p>'
        case Table(header, rows):
            head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
            body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        case Picture(_, caption, svg):
            # The XML declaration and document type belong to a file of its own.
            return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>"
        case _:
            return f"<p>{html.escape(str(block))}</p>"
