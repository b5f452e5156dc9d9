"""Find names in the source that are stored or shown: keys of JSON documents, columns, log actions, Valkey keys."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tests.contract.shapes import (
    Class,
    External,
    Fields,
    Function,
    Instance,
    Items,
    Row,
    Scope,
    Shape,
    Text,
    bind_arguments,
    enter_function,
    evaluate,
    evaluate_call,
    find_calls,
    get_attribute,
    iterate,
    list_paths,
    read_fields,
    resolve,
    walk,
    walk_module,
    walk_modules,
)
from tests.contract.source import PACKAGE, ROOT, FunctionNode, Module, load_modules

JSON_WRITERS = ("dumps", "JSONResponse")
FIELD_COMMANDS = {"hget", "hset", "hmget", "hincrby", "hincrbyfloat", "hsetnx", "hdel", "hexists", "xadd"}
KEY = re.compile(r"(hr:|\{\*\}:).*|.*:hr:.*", re.DOTALL)
MAX_CALLS = 6  # from a command or route to where its document is written


def find_function(function: Callable[..., Any]) -> Function:
    """Return the source of an imported function, without its decorators."""
    plain = inspect.unwrap(function)
    found = resolve(load_modules()[plain.__module__], plain.__name__)
    assert isinstance(found, Function), f"{plain.__module__}.{plain.__name__} is not at the top of its module"
    return found


def find_written_paths(function: Function) -> set[str]:
    """Return the key paths of all JSON documents that a function writes, itself or through its package."""
    package = ".".join(function.module.name.split(".")[:2])
    return {path for shape in _find_written(function, {}, package, MAX_CALLS) for path in list_paths(shape)}


def _find_written(function: Function, given: dict[str, Shape], package: str, depth: int) -> Iterator[Shape]:
    for node, scope in walk(function.node, enter_function(function, given)):
        if not isinstance(node, ast.Call):
            continue
        called = evaluate(node.func, scope)
        if _writes_json(called) and node.args:
            yield evaluate(node.args[0], scope)
        elif isinstance(called, Function) and called.module.name.startswith(package) and depth:
            yield from _find_written(called, bind_arguments(node, called, scope), package, depth - 1)


def _writes_json(called: Shape) -> bool:
    return isinstance(called, External) and called.name.rpartition(".")[2] in JSON_WRITERS


def find_returned_paths(function: Function) -> set[str]:
    """Return the key paths of the dictionary that a function returns; empty if it returns something else."""
    found = evaluate_call(function)
    return list_paths(found) if isinstance(found, Fields) else set()


def find_documents(*without: str) -> set[str]:
    """Return one line for each JSON document that the package writes, except in modules with these prefixes."""
    found: set[str] = set()
    names = _find_writers()
    for node, scope in find_calls(*JSON_WRITERS, *(f"{name}(" for name in names)):
        if scope.module.name.startswith(without) or not node.args:
            continue
        if _read_last_name(node.func, scope) in {*JSON_WRITERS, *names}:
            found |= {_format_line(shape) for shape in _evaluate_documents(node, scope) if list_paths(shape)}
    for function in _find_status_pages():
        returned = evaluate_call(function)
        if isinstance(returned, Row) and list_paths(returned.parts[1]):
            found.add(_format_line(returned.parts[1]))
    return found


def _format_line(shape: Shape) -> str:
    return ", ".join(sorted(list_paths(shape)))


def _evaluate_documents(node: ast.Call, scope: Scope) -> Iterator[Shape]:
    called = evaluate(node.func, scope)
    if _writes_json(called):
        yield evaluate(node.args[0], scope)
    elif isinstance(called, Function) and isinstance(called.node, FunctionNode):
        given = bind_arguments(node, called, scope)
        yield from (given[name] for name in _find_writers().get(called.node.name, ()) if name in given)


@cache
def _find_writers() -> dict[str, tuple[str, ...]]:
    """Map functions that write one of their parameters as JSON to those parameters."""
    found: dict[str, tuple[str, ...]] = {}
    for function in _find_functions(*JSON_WRITERS):
        names = {each.arg for each in (*function.node.args.args, *function.node.args.kwonlyargs)}
        for node in ast.walk(function.node):
            match node:
                case ast.Call(func=func, args=[ast.Name(id=name), *_]) if name in names:
                    if _read_last_name(func, Scope(function.module)) in JSON_WRITERS:
                        found[getattr(function.node, "name", "")] = (name,)
                case _:
                    pass
    return found


def _find_functions(*words: str) -> Iterator[Function]:
    for node, scope in walk_modules(*words):
        if isinstance(node, FunctionNode):
            yield Function(scope.module, node)


def _find_status_pages() -> Iterator[Function]:
    """Yield the functions that return the status and the body of a page."""
    for module in load_modules().values():
        if "tuple[int, dict[str, Any]]" not in module.text:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                made = Instance(Class(module, node))
                methods = [each.name for each in node.body if isinstance(each, FunctionNode) and _is_page(each)]
                yield from (
                    each for each in (get_attribute(made, name) for name in methods) if isinstance(each, Function)
                )
        for node in module.tree.body:
            if isinstance(node, FunctionNode) and _is_page(node):
                yield Function(module, node)


def _is_page(node: FunctionNode) -> bool:
    return node.returns is not None and ast.unparse(node.returns) == "tuple[int, dict[str, Any]]"


def _read_last_name(func: ast.expr, scope: Scope) -> str:
    """Return the name of what is called, as it is defined, whatever an import renames it to."""
    match func:
        case ast.Name(id=name):
            return scope.module.imports.get(name, name).rpartition(".")[2]
        case ast.Attribute(attr=name):
            return name
        case _:
            return ""


def find_matched_fields() -> set[str]:
    """Return one line for each class whose field names are columns, query parameters or JSON keys."""
    found: set[str] = set()
    for node, scope in find_calls("asdict", "vars(", "class_row", "(**"):
        name = _read_last_name(node.func, scope)
        of: Shape = None
        if name in ("asdict", "vars", "class_row") and node.args:
            of = evaluate(node.args[0], scope)
        elif any(keyword.arg is None for keyword in node.keywords):
            of = evaluate(node.func, scope)
        if isinstance(of, Instance):
            found.add(", ".join(sorted(list_paths(of) if name == "asdict" else read_fields(of.of))))
        elif isinstance(of, Class) and _is_dataclass(of):
            found.add(", ".join(sorted(read_fields(of))))
    return found - {""}


def _is_dataclass(of: Class) -> bool:
    return any("dataclass" in ast.unparse(each) for each in of.node.decorator_list)


def find_log_actions() -> set[str]:
    """Return one line for each log action, with the other fields of the log line."""
    found: set[str] = set()
    for node, scope in find_calls('"action"'):
        for keyword in node.keywords:
            if keyword.arg == "extra" and isinstance(extra := evaluate(keyword.value, scope), Fields):
                others = ", ".join(sorted(key for key, _ in extra.known if key != "action"))
                named = extra.get("action")
                for action in named.options if isinstance(named, Text) else {"?"}:
                    found.add(f"{action} ({others})" if others else action)
    return found


def find_audit_actions() -> set[str]:
    """Return dotted names that are passed to functions: actions of the audit log, and settings."""
    found: set[str] = set()
    for node, _ in find_calls("audit"):
        for given in node.args[:2]:
            match given:
                case ast.Constant(value=str() as text) if re.fullmatch(r"[a-z]+(\.[a-z_]+)+", text):
                    found.add(text)
                case _:
                    pass
    return {text for text in found if not text.startswith(PACKAGE)}


def find_lease_names() -> set[str]:
    """Return lease names: constants of one word in the classes of modules named after leases."""
    found: set[str] = set()
    for node, scope in walk_modules("ease"):
        if isinstance(node, ast.ClassDef) and "lease" in scope.module.name:
            values = [each.value for each in node.body if isinstance(each, ast.Assign)]
            texts = [each.value for each in values if isinstance(each, ast.Constant)]
            found |= {text for text in texts if isinstance(text, str) and text.isidentifier()}
    return found


def find_valkey_keys() -> set[str]:
    """Return the patterns of keys that the Python source builds; `*` stands for a variable part."""
    found: set[str] = set()
    homes = {module.name for module in load_modules().values() if re.search(r"[\"']:?hr:|\{\{\{", module.text)}
    for module in load_modules().values():
        if module.name not in homes and homes.isdisjoint(_list_imported(module)):
            continue
        for node, scope in walk_module(module):
            is_call = isinstance(node, ast.Call) and module.name in homes
            if is_call or isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
                found |= {text for text in _list_texts(evaluate(node, scope)) if _is_key(text)}
    return found


def _list_imported(module: Module) -> set[str]:
    return {name for dotted in module.imports.values() for name in (dotted, dotted.rpartition(".")[0])}


def _list_texts(shape: Shape) -> frozenset[str]:
    found = iterate(shape) if isinstance(shape, Items | Row) else shape
    return found.options if isinstance(found, Text) else frozenset()


def _is_key(text: str) -> bool:
    """Return True if a text is a whole key, not a prefix, a regular expression or a message."""
    return KEY.fullmatch(text) is not None and not re.search(r"\s|[|\\{:]$|[|\\]", text)


DECLARED_KEY = re.compile(r"^ *(\S*(?:hr:|\{PREFIX\}:)\S*) +(string|hash|set|zset|stream|list)\b", re.MULTILINE)


def find_declared_keys() -> set[str]:
    """Return keys with their types, from the tables in docstrings."""
    texts = [module.text for module in load_modules().values() if "hash " in module.text]
    return {f"{key} {kind}" for text in texts for key, kind in DECLARED_KEY.findall(text)}


def find_valkey_fields() -> set[str]:
    """Return the fields of hashes and stream entries that the Python source names."""
    found: set[str] = set()
    for node, scope in find_calls(*(f".{command}(" for command in FIELD_COMMANDS)):
        if not (isinstance(node.func, ast.Attribute) and node.func.attr in FIELD_COMMANDS):
            continue
        several = node.func.attr in ("hmget", "hdel")
        mappings = [each.value for each in node.keywords if each.arg == "mapping"]
        for given in (*(node.args[1:] if several else node.args[1:2]), *mappings):
            made = evaluate(given, scope)
            names = iterate(made) if isinstance(made, Fields | Items | Row) else made
            if isinstance(names, Text):
                found |= {f"{node.func.attr} {name}" for name in names.options}
    return found


# --- Lua --------------------------------------------------------------------------------------------------------

LUA_TOKEN = re.compile(
    r"(?P<comment>--\[\[.*?\]\]|--[^\n]*)|(?P<text>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")|(?P<join>\.\.(?!\.))"
    r"|(?P<name>[A-Za-z_][\w.:]*(?<![.:]))|(?P<other>\S)",
    re.DOTALL,
)
LUA_WORDS = re.compile(r"\w.* .*\w")  # a message
LUA_PATTERN = re.compile(r"[%^\[]")


def _tokenize_lua(text: str) -> list[tuple[str, str]]:
    found = [(match.lastgroup or "", match[0]) for match in LUA_TOKEN.finditer(text)]
    return [(kind, token) for kind, token in found if kind != "comment"]


def _read_lua_sources() -> Iterator[str]:
    for path in sorted(ROOT.rglob("*.lua")):
        yield path.read_text("utf-8")


def find_lua_keys() -> set[str]:
    """Return patterns of keys and fields that Lua concatenates: with a colon, or with the prefix of the shard."""
    sources = list(_read_lua_sources())
    prefixes = {name for text in sources for name in re.findall(r"^local (\w+) = ARGV\[1\]$", text, re.MULTILINE)}
    found: set[str] = set()
    for text in sources:
        for parts in _find_lua_joins(_tokenize_lua(text)):
            begins = "hr:{*}:" if parts[0][1] in prefixes else None
            pattern = "".join(token[1:-1] if kind == "text" else ANY_PART for kind, token in parts)
            if begins is not None:
                pattern = begins + pattern.removeprefix(ANY_PART)
            if ":" in pattern and " " not in pattern:
                found.add(pattern)
    return found


ANY_PART = "*"


def _find_lua_joins(tokens: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Yield the operands of every chain of `..`, without the arguments of calls in them."""
    at = 0
    while at < len(tokens):
        parts: list[tuple[str, str]] = []
        while at < len(tokens) and tokens[at][0] in ("text", "name"):
            parts.append(tokens[at])
            at = _skip_lua_brackets(tokens, at + 1) if _is_joined_after_brackets(tokens, at + 1) else at + 1
            if at >= len(tokens) or tokens[at][0] != "join":
                break
            at += 1
        if len(parts) > 1:
            yield parts
        elif not parts:
            at += 1


def _skip_lua_brackets(tokens: list[tuple[str, str]], at: int) -> int:
    depth = 0
    while at < len(tokens):
        if tokens[at][1] in ("(", "["):
            depth += 1
        elif tokens[at][1] in (")", "]"):
            depth -= 1
        elif depth == 0:
            return at
        if depth < 0:
            return at
        at += 1
    return at


def _is_joined_after_brackets(tokens: list[tuple[str, str]], at: int) -> bool:
    """Return True if a call or an index follows, and then a `..`."""
    if at >= len(tokens) or tokens[at][1] not in ("(", "["):
        return False
    after = _skip_lua_brackets(tokens, at)
    return after < len(tokens) and tokens[after][0] == "join"


def find_lua_words() -> set[str]:
    """Return the string literals of scripts, with the command they are passed to. Messages are cut to their code."""
    found: set[str] = set()
    for source in _read_lua_sources():
        command, depth = "", 0
        tokens = _tokenize_lua(source)
        for place, (kind, token) in enumerate(tokens):
            if token in ("redis.call", "redis.pcall") and tokens[place + 2][0] == "text":
                command, depth = tokens[place + 2][1][1:-1], 0
            elif command and token in ("(", ")"):
                depth += 1 if token == "(" else -1
                command = command if depth else ""
            elif kind == "text" and (word := _read_lua_word(token[1:-1])) is not None:
                found.add(f"{command} {word}".strip() if command != word else command)
    return found


def _read_lua_word(text: str) -> str | None:
    if code := re.match(r"[A-Z]{4,}(?= )", text):
        return code[0]
    if not re.search("[a-z]", text, re.IGNORECASE) or LUA_WORDS.search(text) or LUA_PATTERN.search(text):
        return None
    return text.replace(" ", "␣")
