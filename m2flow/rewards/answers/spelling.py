# SPDX-License-Identifier: Apache-2.0
"""The many spellings of one thing: LaTeX commands, Unicode signs, spaces and groups of digits, made alike."""

import re
import unicodedata


def words_of(text: str) -> frozenset[str]:
    """The words in ``text``."""
    return frozenset(text.split())


FUNCTIONS = words_of(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp sqrt gcd lcm max min abs floor ceil"
)
GREEK = words_of(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell"
)
SHORT_WORDS = words_of("no yes odd all not or and the is of to in on up if at an it we are for ans")
"""Words that are no product of letters."""
CONNECTIVES = {"or": ";", "and": ";", "percent": "%"}
APPLIED = re.compile(r"(arcsin|arccos|arctan|sin|cos|tan|ln|log)([a-z])")
"""``sinx``: a function and its variable, written without a space."""
PRODUCT_LETTERS = frozenset("abcdxyz")

_SPELLED = {
    **dict.fromkeys("−–—‐‑﹣－", "-"),
    **dict.fromkeys("×∙⋅·∗", r"\cdot "),
    "÷": "/", "⁄": "/", "∕": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "⩽": r"\le ", "⩾": r"\ge ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ",
    "±": r"\pm ", "√": r"\sqrt ", "∛": r"\sqrt[3] ", "∜": r"\sqrt[4] ",
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
    "°": r"^\circ ", "º": r"^\circ ", "θ": r"\theta ", "∓": r"\mp ", "‰": "/1000", "％": "%", "，": ",", "（": "(",
    "）": ")", "：": ":", "；": ";", "′": "'", "ℝ": r"\mathbb{R}", "“": '"', "”": '"', "’": "'", "‘": "'",
}  # fmt: skip
_CHARACTERS = {ord(key): value for key, value in _SPELLED.items()}
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")

# Groups of three digits behind a LaTeX comma or a thin space.
_GROUPED = re.compile(
    r"(?<![\d.,])[1-9]\d{0,2}(?:(?:\{,\}|,\\!|\\[,;:! ]|[~\u2009\u202f\u00a0' ])\d{3}(?!\d))+(?!\s*/)"
)
_GROUP_MARK = re.compile(r"[^\d]")
_LAYOUT = re.compile(
    r"(?<!\\)\\(?:displaystyle|textstyle|scriptstyle|left|right|middle|[bB]igg?[lrm]?|limits|nolimits|quad|qquad|thinspace|"
    r"hspace\*?\{[^{}]*\}|(?:text)?color\{[^{}]*\}|phantom\{[^{}]*\}|mathstrut|strut|,|;|:|!|>|\s)(?![A-Za-z])|"
    r"(?<!\\)\\[,;:!> ]|[~\u00a0\u2009\u202f]"
)
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_UNIT_DOT = re.compile(r"(?<![A-Za-z])(sq|cu|ft|in|yd|lb|lbs|oz|hr|hrs|min|sec)\.(?=\s*[a-z])")
_UNIT = r"\s*(\\(?:text|mathrm|rm)\s*\{[^{}]*\}(?:\s*\^\s*(?:\d|\{\d\}))?)\s*"
_UNIT_FRACTION = re.compile(rf"\\[dt]?frac\s*\{{{_UNIT}\}}\s*\{{{_UNIT}\}}")
_REPEATED = re.compile(r"(?<!\d)(\d{1,20}\.\d{0,20}?)(\d{1,12}?)\2{1,30}\s*(?:\.\.\.|\\[lc]?dots(?![A-Za-z]))")
_PERIOD = re.compile(r"(?<!\d)(\d{1,20}\.)\((\d{1,20})\)")
_PER_CENT = re.compile(r"\bper cent\b")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_ROW_SPACE = re.compile(r"(?<=\\\\)\[[^\[\]]{0,20}\]")
TEXT_COMMANDS = words_of(
    "text textbf textit textrm textsf texttt textnormal mbox hbox mathrm mathsf operatorname mathbf mathit "
    "boldsymbol bm mathnormal emph underline"
)
MATH_FONTS = words_of("mathbf mathit boldsymbol bm mathnormal underline")
SAME_COMMAND = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac",
    "dbinom": "binom", "tbinom": "binom", "leq": "le", "geq": "ge",
    "leqslant": "le", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "times": "cdot", "ast": "cdot", "div": "/",
    "varnothing": "emptyset", "lbrace": "{", "rbrace": "}", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|",
    "to": "rightarrow", "land": ";", "lor": ";", "infin": "infty", "inf": "infty", "infinity": "infty",
    "oo": "infty", "exponentialE": "e", "imaginaryI": "i", "langle": "(", "rangle": ")", "lparen": "(", "rparen": ")",
    "lbrack": "[", "rbrack": "]", "and": ";", "colon": ":", "cents": "¢", "euro": "€", "pounds": "£", "union": "cup",
    "operatorname*": "operatorname", "percent": "%", "slash": "/",
}  # fmt: skip


def spell(text: str) -> str:
    """The text of an answer in LaTeX and ASCII, without commands that only space or size things."""
    text = _SUPERSCRIPT_RUN.sub(lambda m: f"^{{{m.group().translate(_SUPERSCRIPTS)}}}", text)
    text = _SUBSCRIPT_RUN.sub(lambda m: f"_{{{m.group().translate(_SUBSCRIPTS)}}}", text)
    text = "".join(_compose(c) for c in text) if not text.isascii() else text
    text = _GROUPED.sub(lambda m: _GROUP_MARK.sub("", m.group()), text)
    text = _UNIT_DOT.sub(r"\1 ", text)
    text = _UNIT_FRACTION.sub(r"\1/\2", text)
    text = _PERIOD.sub(r"\1\\overline{\2}", _REPEATED.sub(r"\1\\overline{\2}", text))
    text = _PER_CENT.sub("percent", text)
    text = _TIMES_TEN.sub(r"\\cdot ", text)
    text = _LAYOUT.sub(" ", _ROW_SPACE.sub("", text))
    return _dollars(_DELIMITERS.sub(" ", text)).strip()


def _compose(char: str) -> str:
    if ord(char) in _CHARACTERS:
        return _CHARACTERS[ord(char)]
    folded = unicodedata.normalize("NFKC", char)
    if "⁄" in folded:
        top, bottom = folded.split("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}" if bottom else f"{top}/"
    return folded


def _dollars(text: str) -> str:
    r"""Drop ``$`` around formulas; keep ``\$``, and an unpaired ``$`` before a number, as currency."""
    bare = text.replace(r"\$", "")
    if bare.count("$") % 2 == 1 and re.match(r"[-+]?\s*\$\s*[\d.]", text):
        return text.replace("$", r"\$", 1)
    return re.sub(r"(?<!\\)\$", " ", text)
