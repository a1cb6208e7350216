"""The Jinja sandbox of one rendering: whatever text a template gets hold of is a traced one."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_title
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from markupsafe import Markup, escape

from tandem.tokenizer.chat.formatting import BraceFormatter, SafeBraceFormatter
from tandem.tokenizer.chat.origin import Origin
from tandem.tokenizer.chat.traced import Texts

# Filters that look at letters and signs with means of their own, or at numbers.
_FILTERS_OF_PLAIN_TEXT = (
    *("wordcount", "urlencode", "striptags", "urlize", "wordwrap", "pprint", "int", "float", "filesizeformat"),
)
# Filters and tests that look at what str() makes of anything.
_FILTERS_OF_STR = ("upper", "lower", "capitalize", "trim", "center", "replace", "format")
_TESTS_OF_STR = ("upper", "lower")


class ConversationRefusedError(TemplateError):
    """The template called raise_exception."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """What transformers gives to templates.

    Python's own texts are made where texts are joined, formatted, or returned by filters and calls; there they become
    traced ones, and so do a template's own where one looks into them."""

    intercepted_binops = frozenset("%")

    def __init__(self, texts: Texts) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False)
        self.texts = texts
        self.traced, self.safe = texts.traced, texts.safe
        for name in _FILTERS_OF_PLAIN_TEXT:
            self.filters[name] = texts.on_plain(self.filters[name], _passed(self.filters[name]))
        self.filters.update(tojson=_to_json(texts), safe=texts.safe, title=self._title)
        self.filters.update(e=self.escape, escape=self.escape, forceescape=self._force_escape)
        filters: dict[str, Any] = {**self.filters}
        for name, function in filters.items():
            self.filters[name] = self._of_texts(function, str if name in _FILTERS_OF_STR else None)
        tests: dict[str, Any] = {**self.tests}
        for name in _TESTS_OF_STR:
            self.tests[name] = self._of_texts(tests[name], str)
        self.tests["in"] = self._of_texts(tests["in"])
        self.tests["escaped"] = lambda value: isinstance(value, Markup)
        self.globals.update(raise_exception=_raise, dict=_Dict(), namespace=_Namespace)
        self.globals["strftime_now"] = texts.on_plain(lambda format: datetime.datetime.now().strftime(format))

    def concat(self, parts: Iterable[str]) -> Any:
        """Stands where Jinja has "".join."""
        return self.traced("".join(parts))

    def getattr(self, obj: Any, attribute: str) -> Any:
        return super().getattr(self.traced(obj), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Returns an item, or an attribute, for which Python knows plain names alone."""
        obj = self.traced(obj)
        with suppress(TypeError, LookupError):
            return obj[argument]
        name = self.texts.plain(argument) if isinstance(argument, str) else argument
        return super().getitem(obj, name if isinstance(name, str) and name.isascii() else argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - Jinja's
        found = super().call(__context, __obj, *args, **kwargs)
        of_octets = isinstance(getattr(__obj, "__self__", None), bytes)
        return __self.texts.of_octets(found) if of_octets else __self.traced(found)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return self.traced(super().call_binop(context, operator, self.traced(left), right))

    def wrap_str_format(self, value: Any) -> Callable[..., Any] | None:
        """Gives `str.format` and `str.format_map` our formatter in place of the sandbox's."""
        checked = super().wrap_str_format(value)
        if checked is None:
            return None
        form = self.traced(value.__self__)
        formatter = BraceFormatter(self, self.texts.alphabet)
        if isinstance(form, Markup):
            formatter = SafeBraceFormatter(self, self.texts.alphabet, escape=form.escape)

        @wraps(checked)
        def call(*arguments: Any, **values: Any) -> Any:
            if value.__name__ == "format_map":
                [values] = arguments
                arguments = ()
            found = formatter.vformat(form, arguments, values)
            return self.safe(found) if isinstance(form, Markup) else self.traced(found)

        return call

    def _of_texts(self, function: Callable[..., Any], first: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
        """Makes a filter take and return texts of ours; `first` is done to its value."""
        place = _passed(function)

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            given = [*arguments]
            if first is not None and not isinstance(given[place], str):
                given[place] = first(given[place])
            given[place:] = map(self.traced, given[place:])
            return self.traced(function(*given, **options))

        return call

    def _title(self, value: Any) -> Any:
        text = self.traced(value if isinstance(value, str) else str(value))
        return text._aligned(do_title(text._plain), str.title)

    def escape(self, value: Any) -> Any:
        """Escapes HTML in a value's text, if that is not marked as safe."""
        return self.safe(escape(self.traced(value if hasattr(value, "__html__") else str(value))))

    def _force_escape(self, value: Any) -> Any:
        text = str(value) if not isinstance(value, Markup) else str(self.traced(value))
        return self.safe(self.traced(text).__html__())


def _passed(function: Callable[..., Any]) -> int:
    """Returns how many arguments Jinja puts in front of the template's."""
    return 1 if hasattr(function, "jinja_pass_arg") else 0


class _CodeGenerator(CodeGenerator):
    """Compiles what Jinja leaves to Python's own operators and types, and computes nothing beforehand: the code serves
    other renderings too, which have characters of their own."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData | nodes.Const):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.traced(")
        super().visit_Concat(node, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        """Asks a text of ours what is in it: Python would ask the right one, and that may be the template's own."""
        if node.op not in ("in", "notin"):
            super().visit_Operand(node, frame)
            return
        self.write(" in environment.traced(" if node.op == "in" else " not in environment.traced(")
        self.visit(node.expr, frame)
        self.write(")")

    def write_commons(self) -> None:
        """Marks a text as safe, where Jinja's own class would escape ours first, and escapes what holds one of ours."""
        super().write_commons()
        self.writeline("Markup, escape = environment.safe, environment.escape")


ChatEnvironment.code_generator_class = _CodeGenerator


def _to_json(texts: Texts) -> Callable[..., Any]:
    """Implements the filter `tojson`. The JSON of data is data as a whole: the quotes are the template's, but what they
    enclose is not."""

    def tojson(
        x: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
    ) -> Any:
        indent, separators = texts.plain(indent), texts.plain(separators)
        text = json.dumps(
            texts.plain(x), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return texts.of(text, Origin.DATA)

    return tojson


class _Generation(Extension):
    """Implements `{% generation %}` ... `{% endgeneration %}`, which marks an assistant's words for training; the text
    stays."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's name and type

    def parse(self, parser: Parser) -> nodes.Node:
        """Parses a block with its own scope, as transformers does."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """A `dict` without access to its class."""

    def __call__(self, *arguments: Any, **values: Any) -> dict[Any, Any]:
        return dict(*arguments, **values)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _Namespace(Namespace):
    """A `namespace` that takes no names of Python's internals."""

    def __init__(*arguments: Any, **values: Any) -> None:  # so that `self` may be a name
        self, *given = arguments
        names = dict(*given, **values)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no names that begin with an underscore: {name!r}")


def _raise(message: str) -> NoReturn:
    raise ConversationRefusedError(message)
