"""Tables for papers: LaTeX with the rules of booktabs."""

import re
import unicodedata
from collections.abc import Sequence

from benchsuite.results.render.tables import Column, Row
from benchsuite.results.render.words import plain

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "\u00d7": r"$\times$",
    "→": r"$\rightarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "\u2212": r"$-$",
    "\u00b5": r"$\mu$",
    "\u03bc": r"$\mu$",
}
ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
KNOWN = "ßøØåÅæÆœŒłŁı\u2013\u2014\u2018\u2019\u201c\u201d\u2026"
"""Letters and signs besides accented ones that LaTeX's first font prints from UTF-8."""
LAST_ACCENTED = "\u017f"
NEEDED = "% needs \\usepackage{booktabs}\n"
"""What stands before tables."""
HYPHENS = re.compile("-(?=-)")
"""Two of them would be printed as a dash."""


def escaped(text: str) -> str:
    """A text as any font of LaTeX prints it, on one line; of letters that few fonts have, the number: (U+2717)."""
    seen = "".join(letter for letter in plain(text) if letter.isspace() or unicodedata.category(letter)[0] != "C")
    return HYPHENS.sub("-{}", "".join(map(_letter, " ".join(seen.split()))))


def _letter(letter: str) -> str:
    if letter in ESCAPES:
        return ESCAPES[letter]
    is_known = letter.isascii() or letter in KNOWN or _is_accented(letter)
    return letter if is_known else f"(U+{ord(letter):04X})"


def _is_accented(letter: str) -> bool:
    parts = unicodedata.normalize("NFD", letter)
    return letter <= LAST_ACCENTED and len(parts) == 2 and parts[0].isascii() and parts[1] in ACCENTS


def as_latex(found: Sequence[Row], columns: Sequence[Column], caption: str, label: str) -> str:
    r"""A `table` with a caption and a label, `tab:` before it; needs \usepackage{booktabs}."""
    heading = " & ".join(escaped(column.heading) for column in columns)
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{escaped(caption)}}}",
            rf"\label{{tab:{re.sub(r'[^A-Za-z0-9.:-]+', '-', label)}}}",
            rf"\begin{{tabular}}{{{''.join('r' if column.right else 'l' for column in columns)}}}",
            r"\toprule",
            rf"{heading} \\",
            r"\midrule",
            *(" & ".join(_cell(column.cell(row)) for column in columns) + r" \\" for row in found),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _cell(text: str) -> str:
    """A cell; one that starts with a bracket or a star would be an option of the rule or of the row before."""
    return ("{}" if text.startswith(("[", "*")) else "") + escaped(text)
