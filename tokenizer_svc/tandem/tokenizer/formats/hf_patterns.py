"""Regular expressions of a `tokenizer.json`: those of Oniguruma in Ruby's syntax, written for the engines used here.

Many texts are patterns to both that mean different things: `(?m:.)`, `{2}?`, `\\pL`, `\\w`, an empty alternative. So a
pattern is read as Oniguruma reads it, and what is not known to mean the same, or to be written so that it does, is
refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np

from tandem.tokenizer.vocabularies.bpe.pattern_compiler import CharacterMasks, regexs
from tandem.tokenizer.vocabularies.bpe.pattern_parser import (
    Both,
    Characters,
    Choice,
    Either,
    Item,
    Loop,
    Not,
    NotUnderstood,
    parse,
)

# Of Oniguruma and of `regex` alike: the characters of Unicode 3.2 that have them are the same.
_CATEGORIES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn "
    "Letter Uppercase_Letter Lowercase_Letter Titlecase_Letter Modifier_Letter Other_Letter Mark Nonspacing_Mark "
    "Spacing_Mark Enclosing_Mark Number Decimal_Number Letter_Number Other_Number Punctuation Symbol Separator"
)
_SCRIPTS = (
    "Han Hiragana Katakana Hangul Bopomofo Latin Greek Cyrillic Armenian Hebrew Arabic Devanagari Bengali Gurmukhi "
    "Gujarati Oriya Tamil Telugu Kannada Malayalam Sinhala Thai Lao Tibetan Myanmar Georgian Ethiopic Khmer Mongolian"
)
_PROPERTIES = frozenset([*_CATEGORIES.split(), *_SCRIPTS.split(), "Alphabetic", "White_Space"])
_PROPERTY = re.compile(r"\\[pP]\{([A-Za-z_]+)\}")
_CODE_POINT = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x\{([0-9a-fA-F]{1,8})\}|x([0-7][0-9a-fA-F]))")
_CLASSES = frozenset({r"\s", r"\S", r"\d", r"\D"})
_CONTROLS = dict(zip("ntrfva", "\n\t\r\f\v\a", strict=True))
# Escapes that one of the engines here reads otherwise.
_REWRITTEN = {"v": r"\x0b", "a": r"\x07", "<": "<", ">": ">"}
_COUNT = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}")
_LETTERS = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"  # \w in a set; alone it has some numbers, too
_NUMBERS = "\u00b2\u00b3\u00b9\u00bc\u00bd\u00be"
_OPERATORS = frozenset("&|~-")
_NOT = "is not supported"
# Letters beyond ASCII that are one of it, whatever the case.
_FOLDED = {"s": "\u017f", "k": "\u212a"}
# Two letters that some one character is, whatever the case, and so is a part of it (ss, ff, fi, fl, st).
_JOINED = {"s": frozenset("st"), "f": frozenset("fil")}


@dataclass(slots=True)
class _Part:
    """A piece of the pattern as it is written for the engines used here."""

    text: str
    empty: bool = False  # it may match the empty text
    takes: bool = True  # it may match some text
    letters: frozenset[str] = frozenset()  # that it may match in either case
    is_look: bool = False
    is_plain: bool = True  # it matches one character, or is an alternative of those


def translated(pattern: str) -> str:
    """Returns the pattern in the syntax of the engines used here. Raises ValueError where that is not possible."""
    reader = _Reader(pattern)
    found = reader.choice()
    if reader.at < len(pattern):
        reader.refuse(pattern[reader.at])
    if found.empty and found.takes:
        raise ValueError(
            f"the pre-tokenizer Split by the pattern {pattern!r:.80}, which matches the empty text, {_NOT}"
        )
    return found.text


@lru_cache(16)
def takes_all(pattern: str) -> bool:
    """Tells whether a translated pattern leaves nothing of any text between its matches. Only what is seen at a glance
    is known: that each character, wherever it stands, has an alternative that matches it alone."""
    try:
        branches = parse(pattern).branches
    except NotUnderstood:
        return False
    alone = tuple(characters for branch in branches if (characters := _alone(branch)) is not None)
    if not alone:
        return False
    points = np.concatenate((np.arange(0xD800), np.arange(0xE000, 0x110000))).astype(np.uint32)
    masks = CharacterMasks((Either(alone),), regexs)
    masks.learn(points)
    return bool((masks.masks[points] & 1).all())


def _alone(branch: tuple[Item, ...]) -> Characters | None:
    """Returns characters that a sequence matches alone, whatever is around them."""
    found: Characters | None = None
    eaten: list[Characters] = []
    for item in branch:
        match item:
            case Loop(characters, 1, _, _) if found is None:
                found = characters
            case Loop(characters, 0, _, True) if found is None:  # what it takes, it does not give back
                eaten.append(characters)
            case Loop(_, 0, _, _) | Choice(_, True):
                pass
            case _:
                return None
    for characters in eaten:
        found = found and Both(Not(characters), found)
    return found


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._folds = self._dots = False  # within (?i:...) and (?m:...)
        self._ranged = False  # behind a range within a set
        self.at = 0

    def refuse(self, what: str) -> NoReturn:
        raise ValueError(f"the pre-tokenizer Split by a pattern with {what!r} {_NOT}")

    def _comes(self, text: str) -> bool:
        return self._pattern.startswith(text, self.at)

    def _next(self, text: str) -> bool:
        """Skips `text` if it comes next, and returns whether it did."""
        found = self._comes(text)
        self.at += len(text) * found
        return found

    def choice(self) -> _Part:
        branches = [self._sequence()]
        while self._next("|"):
            branches.append(self._sequence())
        return _Part(
            "|".join(branch.text for branch in branches),
            any(branch.empty for branch in branches),
            any(branch.takes for branch in branches),
            frozenset[str]().union(*(branch.letters for branch in branches)),
            is_plain=all(branch.is_plain for branch in branches),
        )

    def _sequence(self) -> _Part:
        found = _Part("", empty=True, takes=False)
        last: frozenset[str] = frozenset()
        while self.at < len(self._pattern) and self._pattern[self.at] not in "|)":
            begin = self.at
            part = self._quantified(self._atom())
            if any(not part.letters.isdisjoint(_JOINED.get(letter, ())) for letter in last):
                self.refuse(f"(?i:{self._pattern[begin - 1 : self.at]})")
            last = part.letters | (last if part.empty else frozenset())
            found.text += part.text
            found.empty &= part.empty
            found.takes |= part.takes
            found.letters |= part.letters
            found.is_plain &= part.is_plain
        return found

    def _quantified(self, atom: _Part) -> _Part:
        begin = self.at
        counted = _COUNT.match(self._pattern, self.at)
        if self._pattern[self.at : self.at + 1] not in ("?", "*", "+", "{"):
            return atom
        if counted is None:
            if self._comes("{"):
                self.refuse(self._pattern[self.at : self.at + 8])
            self.at += 1
            least = 0 if self._pattern[begin] in "?*" else 1
            once = self._pattern[begin] == "?"
            _ = self._next("+") or self._next("?")
        else:
            self.at = counted.end()
            least, once = int(counted[1]), False
            # Behind a fixed number `?` makes the whole optional, and behind any count `+` repeats it.
            if (counted[2] is None and self._comes("?")) or self._comes("+"):
                self.refuse(self._pattern[begin : self.at + 1])
            if counted[3] is not None and int(counted[3]) < least:
                self.refuse(counted[0])
            _ = self._next("?")
        text = self._pattern[begin : self.at]
        if self._pattern[self.at : self.at + 1] in ("?", "*", "+", "{"):
            self.refuse(text + self._pattern[self.at])
        several = not once and not (atom.letters.isdisjoint(_JOINED))
        if atom.is_look or atom.empty or several:
            self.refuse(atom.text + text)
        return _Part(atom.text + text, least == 0, atom.takes, atom.letters, is_plain=False)

    def _atom(self) -> _Part:
        character = self._pattern[self.at]
        if character == "(":
            return self._group()
        if character == "[":
            return self._set()
        if character == "\\":
            return self._escape()
        if character in "?*+{":
            self.refuse(character)
        self.at += 1
        match character:
            case ".":
                return _Part(r"[\s\S]" if self._dots else ".")
            case "^":  # behind a line break that ends the text no line begins
                return _Part(r"(?<![^\n])(?=[\s\S])", empty=True, takes=False, is_look=True, is_plain=False)
            case "$":
                return _Part(r"(?![^\n])", empty=True, takes=False, is_look=True, is_plain=False)
            case "]" | "}":
                return _Part("\\" + character)
        return self._literal(character)

    def _literal(self, character: str) -> _Part:
        if not self._folds:
            return _Part(character)
        if not character.isascii():
            self.refuse(f"(?i:{character})")
        if not character.isalpha():
            return _Part(character)
        low = character.lower()
        return _Part(f"[{low}{low.upper()}{_FOLDED.get(low, '')}]", letters=frozenset(low))

    def _group(self) -> _Part:
        begin = self.at
        self.at += 1
        before = self._folds, self._dots
        look = next((each for each in ("?=", "?!", "?<=", "?<!") if self._next(each)), "")
        opening = look
        if look and self._folds:
            self.refuse(f"(?i:({look}")
        if not look and self._comes("?"):
            flags = next((each for each in ("?:", "?>", "?i:", "?m:", "?im:", "?mi:") if self._next(each)), None)
            if flags is None:
                self.refuse(self._pattern[begin : begin + 4])
            self._folds |= "i" in flags
            self._dots |= "m" in flags
            opening = "?>" if flags == "?>" else "?:"
        inside = self.choice()
        if not self._next(")"):
            self.refuse(self._pattern[begin:])
        self._folds, self._dots = before
        text = f"({opening}{inside.text})"
        if not look:
            return _Part(text, inside.empty, inside.takes, inside.letters, is_plain=False)
        if "<" in look and not inside.is_plain:
            self.refuse(self._pattern[begin : self.at])
        return _Part(text, empty=True, takes=False, is_look=True, is_plain=False)

    # --- characters

    def _escape(self) -> _Part:
        found = self._pattern[self.at : self.at + 2]
        if self._folds and found[1:].isalnum():
            self.refuse(f"(?i:{found})")
        if found == r"\w":
            self.at += 2
            return _Part(f"[{_LETTERS}{_NUMBERS}]")
        return _Part(self._class() or self._escaped()[0])

    def _class(self) -> str | None:
        """Reads a class of characters, if one comes next."""
        if self._pattern[self.at : self.at + 2] in _CLASSES:
            self.at += 2
            return self._pattern[self.at - 2 : self.at]
        found = _PROPERTY.match(self._pattern, self.at)
        if found is None or found[1] not in _PROPERTIES:
            return None
        self.at = found.end()
        return found[0]

    def _escaped(self) -> tuple[str, str]:
        """Reads one escaped character. Returns it as it is written, and itself."""
        found = _CODE_POINT.match(self._pattern, self.at)
        if found is not None:
            point = int(next(filter(None, found.groups())), 16)
            if point > 0x10FFFF or 0xD800 <= point < 0xE000:
                self.refuse(found[0])
            self.at = found.end()
            return (found[0] if found[2] is None else f"\\U{point:08x}"), chr(point)
        letter = self._pattern[self.at + 1 : self.at + 2]
        if not letter or not letter.isascii() or (letter.isalnum() and letter not in _CONTROLS):
            known = re.compile(r"\\(?:[pP](?:\{[^}]*\})?|x\{[^}]*\}|.?)", re.DOTALL).match(self._pattern, self.at)
            self.refuse(known[0] if known else "\\")
        self.at += 2
        return _REWRITTEN.get(letter, "\\" + letter), _CONTROLS.get(letter, letter)

    def _set(self) -> _Part:
        begin = self.at
        self.at += 1
        negated = self._next("^")
        text, letters = self._members(begin)
        found = f"[{'^' * negated}{text}]"
        if self._next("&&"):
            if negated or letters or text.endswith("-"):
                self.refuse(self._pattern[begin : self.at])
            return self._both(begin, found)
        self.at += 1
        if not letters:
            return _Part(found)
        if negated:
            self.refuse(f"(?i:{self._pattern[begin : self.at]})")
        more = "".join(f"{low}{low.upper()}{_FOLDED.get(low, '')}" for low in sorted(letters))
        return _Part(f"{found[:-1]}{more}]", letters=letters)

    def _both(self, begin: int, left: str) -> _Part:
        """Reads the second of two sets of which a character is in both. Not all engines here know that: it becomes a
        look at the next character, in front of the first set."""
        if self._comes("[^"):
            right = self._set()
        else:
            text, letters = self._members(begin, first=False)
            right = _Part(f"[{text}]", letters=letters)
        if right.text == "[]" or right.letters or not self._next("]"):
            self.refuse(self._pattern[begin : self.at + 1])
        return _Part(f"(?:(?={right.text}){left})", is_plain=False)

    def _members(self, begin: int, depth: int = 0, first: bool = True) -> tuple[str, frozenset[str]]:
        """Reads what is in a set, up to its end or `&&`. Returns it, and the letters that it has in either case."""
        self._ranged = False
        if self._comes(":"):
            self.refuse(self._pattern[begin : self.at + 1])
        text = ""
        letters: frozenset[str] = frozenset()
        while first or not self._comes("]"):
            if self.at >= len(self._pattern):
                self.refuse(self._pattern[begin:])
            if self._comes("&&"):
                if depth or not text:
                    self.refuse("&&")
                break
            if self._comes("["):
                if text.endswith("-"):  # it could come to mean a range
                    self.refuse("-[")
                more, others = self._within(depth + 1)
                text, letters = text + more, letters | others
            else:
                more, others = self._range(first, depth)
                doubled = more[:1] == text[-1:] and more[:1] in _OPERATORS  # two of them are one to some engines
                text, letters = text + "\\" * doubled + more, letters | others
            first = False
        return text, letters

    def _within(self, depth: int) -> tuple[str, frozenset[str]]:
        """Reads a set within another one, to which it adds what it has."""
        begin = self.at
        self.at += 1
        if self._comes("^"):
            self.refuse(self._pattern[begin : self.at + 1])
        found = self._members(begin, depth)
        self.at += 1
        if self._comes("-"):
            self.refuse("]-")
        return found

    def _range(self, first: bool, depth: int) -> tuple[str, frozenset[str]]:
        """Reads a class, a character or a range of characters."""
        begin = self.at
        known = self._class()
        if known is not None or self._next(r"\w"):
            if self._folds:
                self.refuse(f"(?i:[{self._pattern[begin : self.at]}])")
            if self._comes("-") and not self._comes("-]"):
                self.refuse(self._pattern[begin : self.at + 2])
            return known or _LETTERS, frozenset()
        if self._comes("-") and self._ranged and not depth and self._pattern[begin + 1 : begin + 2] not in ("-", "]"):
            self._ranged = False  # behind a range it is no other range's
            self.at += 1
            return r"\-", frozenset()
        if self._comes("-") and (depth or not (first or self._comes("-]"))):
            self.refuse(self._pattern[begin - 1 : self.at + 2])
        self._ranged = False
        low, point = self._one()
        if low == "-" and self._folds:  # letters will stand beside it
            low = r"\-"
        if not self._comes("-") or self._comes("-]"):
            return low, self._folding(point, point)
        self.at += 1
        if any(map(self._comes, ("[", "&&", r"\w"))) or self.at >= len(self._pattern) or self._class():
            self.refuse(self._pattern[begin : self.at + 2])
        high, last = self._one()
        if last < point:
            self.refuse(self._pattern[begin : self.at + 1])
        self._ranged = True
        ends = ("\\-" if end == "-" else end for end in (low, high))
        return "-".join(ends), self._folding(point, last)

    def _one(self) -> tuple[str, str]:
        """Reads one character of a set."""
        if self._comes("\\"):
            if self._folds and self._pattern[self.at + 1 : self.at + 2].isalnum():
                self.refuse(f"(?i:[{self._pattern[self.at : self.at + 2]}])")
            return self._escaped()
        self.at += 1
        character = self._pattern[self.at - 1]
        return ("\\]" if character == "]" else character), character

    def _folding(self, low: str, high: str) -> frozenset[str]:
        """Returns the letters of a range if they stand for both cases."""
        if not self._folds:
            return frozenset()
        if not high.isascii():
            self.refuse(f"(?i:[{low}-{high}])")
        points = map(chr, range(ord(low), ord(high) + 1))
        return frozenset(point.lower() for point in points if point.isalpha())
