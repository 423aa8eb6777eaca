"""Tables for papers: LaTeX with the rules of booktabs."""

import re
from collections.abc import Sequence

from results.report.tables import Column, Row

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
    "±": r"$\pm$",
    "·": r"$\cdot$",
}


def escaped(text: str) -> str:
    """A text as LaTeX prints it, on one line."""
    return "".join(ESCAPES.get(letter, letter) for letter in " ".join(text.split()))


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
    """A cell; one that starts with a bracket would be the rule's or the row's option."""
    return ("{}" if text.startswith("[") else "") + escaped(text)
