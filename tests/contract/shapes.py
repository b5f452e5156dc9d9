"""Infer the shape of expressions from source: which keys a dictionary has, which texts a string can be.

A small abstract interpreter over the syntax trees of `source.py`. It follows calls, annotations, dataclass fields,
comprehensions and local variables, so that the result depends on the names that are stored or shown, and not on what
Python calls them. None stands for anything that has no keys or is not known. Branches are joined, and conditions are
ignored: a shape holds every key that can occur.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from itertools import product
from typing import TypeAlias

from tests.contract.source import FunctionNode, Module, Scoped, load_modules

MAX_DEPTH = 24  # of expressions that are evaluated within each other, in one function
MAX_CALLS = 8  # that are followed from where an evaluation begins
MAX_TEXTS = 64
ANY = "*"


@dataclass(frozen=True)
class Text:
    """A string: its possible values, with `*` for unknown parts."""

    options: frozenset[str]


@dataclass(frozen=True)
class Fields:
    """A dictionary: its known keys, and the shape of values under other keys."""

    known: tuple[tuple[str, Shape], ...] = ()
    rest: Shape = None
    is_open: bool = False  # it may have other keys

    def get(self, key: str) -> Shape:
        return dict(self.known).get(key, self.rest)

    def values(self) -> Shape:
        return join([*(value for _, value in self.known), self.rest])


@dataclass(frozen=True)
class Items:
    """An iterable, by the shape of its items."""

    each: Shape


@dataclass(frozen=True)
class Row:
    """A tuple of fixed length."""

    parts: tuple[Shape, ...]


@dataclass(frozen=True)
class Class:
    module: Module
    node: ast.ClassDef


@dataclass(frozen=True)
class Instance:
    of: Class


@dataclass(frozen=True)
class Function:
    module: Module
    node: FunctionNode | ast.Lambda
    bound: Shape = None  # `self` of a method
    scope: Scope | None = None  # where a nested function is defined


@dataclass(frozen=True)
class External:
    """A name from outside the package, such as `json.dumps`; builtins have no dot."""

    name: str


@dataclass(frozen=True)
class Method:
    """A method of a builtin type."""

    name: str
    of: Shape


@dataclass(frozen=True)
class ModuleName:
    name: str


Shape: TypeAlias = "Text | Fields | Items | Row | Class | Instance | Function | External | Method | ModuleName | None"


@dataclass(eq=False)
class Scope:
    """The names visible to an expression: parameters, local variables, then the enclosing scope."""

    module: Module
    body: ast.AST | None = None
    bound: Mapping[str, Callable[[], Shape]] = field(default_factory=dict[str, Callable[[], "Shape"]])
    parent: Scope | None = None
    _locals: dict[str, list[Callable[[], Shape]]] | None = None
    _values: dict[str, Shape] = field(default_factory=dict[str, Shape])

    def lookup(self, name: str, with_popped: bool = False) -> Shape:
        """Return the shape of a name. Keys that the function pops from a dictionary are left out by default."""
        if name not in self._values:
            if self._locals is None:
                self._locals = _find_local_bindings(self)
            assigned = self._locals.get(name, [])
            if name not in self.bound and not assigned:
                return self.parent.lookup(name, with_popped) if self.parent else resolve(self.module, name)
            given = self.bound[name]() if name in self.bound else None
            self._values[name] = given  # what a variable is made of itself adds nothing
            self._values[name] = join([given, *(make() for make in assigned)])
        value = self._values[name]
        if with_popped or not isinstance(value, Fields):
            return value
        popped = _find_popped_keys(self.body, name)
        return Fields(tuple(pair for pair in value.known if pair[0] not in popped), value.rest, value.is_open)


def join(shapes: Iterable[Shape]) -> Shape:
    """Return a shape that has every key of all of these."""
    return reduce(_join, shapes, None)


def _join(one: Shape, other: Shape) -> Shape:
    match one, other:
        case None, _:
            return other
        case Text(), Text():
            return _make_text(one.options | other.options)
        case Fields(), Fields():
            keys = dict.fromkeys([key for key, _ in (*one.known, *other.known)])
            known = tuple((key, _join(dict(one.known).get(key), dict(other.known).get(key))) for key in keys)
            return Fields(known, _join(one.rest, other.rest), one.is_open or other.is_open)
        case Items(), Items():
            return Items(_join(one.each, other.each))
        case Row(), Row() if len(one.parts) == len(other.parts):
            return Row(tuple(map(_join, one.parts, other.parts)))
        case ((Items() | Row()), (Items() | Row())):
            return Items(_join(iterate(one), iterate(other)))
        case _:
            return one


def _make_text(options: Iterable[str]) -> Text:
    found = frozenset(options)
    return Text(found if len(found) <= MAX_TEXTS else frozenset({ANY}))


def iterate(shape: Shape) -> Shape:
    """Return the shape of the items of an iterable."""
    match shape:
        case Items(each):
            return each
        case Row(parts):
            return join(parts)
        case Fields(known, _, is_open):
            return (
                _make_text([*(key for key, _ in known), *([ANY] if is_open else [])])
                if known
                else Text(frozenset({ANY}))
            )
        case _:
            return None


def resolve(module: Module, name: str) -> Shape:
    """Return the shape of a name at the top level of a module."""
    node = module.names.get(name)
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return Function(module, node)
        case ast.ClassDef():
            return Class(module, node)
        case ast.Assign() | ast.AnnAssign():
            return _guard_recursion(node, lambda: _evaluate_assignment(node, name, Scope(module)))
        case _:
            return _resolve_dotted(module.imports.get(name, name))


def _resolve_dotted(dotted: str) -> Shape:
    """Return the shape of what a dotted name imports."""
    if dotted in load_modules():
        return ModuleName(dotted)
    home, _, name = dotted.rpartition(".")
    if home in load_modules():
        return resolve(load_modules()[home], name)
    return External(dotted)


_active: set[object] = set()


def _guard_recursion(key: object, make: Callable[[], Shape]) -> Shape:
    """Evaluate `make` unless the evaluation of this key is in progress or too deep; then return None."""
    if key in _active or len(_active) > MAX_DEPTH:
        return None
    _active.add(key)
    try:
        return make()
    finally:
        _active.discard(key)


# --- Bindings ---------------------------------------------------------------------------------------------------


def _evaluate_assignment(node: ast.Assign | ast.AnnAssign, name: str, scope: Scope) -> Shape:
    if isinstance(node, ast.AnnAssign):
        annotated = read_annotation(node.annotation, scope)
        return annotated if _is_informative(annotated) or node.value is None else evaluate(node.value, scope)
    value = evaluate(node.value, scope)
    return join(bind(target, value).get(name) for target in node.targets)


def bind(target: ast.AST, value: Shape) -> dict[str, Shape]:
    """Return the names that an assignment of this value binds."""
    match target:
        case ast.Name(id=name):
            return {name: value}
        case ast.Starred(value=inner):
            return bind(inner, Items(value))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            found: dict[str, Shape] = {}
            exact = isinstance(value, Row) and len(value.parts) == len(parts)
            for number, part in enumerate(parts):
                found |= bind(part, value.parts[number] if exact and isinstance(value, Row) else iterate(value))
            return found
        case _:
            return {}


def _find_local_bindings(scope: Scope) -> dict[str, list[Callable[[], Shape]]]:
    """Return the local variables of a function, each with the values assigned to it."""
    found: dict[str, list[Callable[[], Shape]]] = {}

    def add(target: ast.AST, make: Callable[[], Shape]) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.setdefault(node.id, []).append(lambda name=node.id: bind(target, make()).get(name))

    for node in _walk_function(scope.body):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                        made = lambda each=target, given=value: _evaluate_item_assignment(each, given, scope)  # noqa: E731
                        found.setdefault(target.value.id, []).append(made)
                    else:
                        add(target, lambda given=value: evaluate(given, scope))
            case ast.AnnAssign(target=ast.Name() as target):
                add(target, lambda each=node, name=target.id: _evaluate_assignment(each, name, scope))
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                found.setdefault(name, []).append(lambda given=value: evaluate(given, scope))
            case ast.NamedExpr(target=target, value=value):
                add(target, lambda given=value: evaluate(given, scope))
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                add(target, lambda given=value: iterate(evaluate(given, scope)))
            case ast.withitem(context_expr=value, optional_vars=ast.AST() as target):
                add(target, lambda given=value: _evaluate_with(given, scope))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                made = Function(scope.module, node, None, scope)
                found.setdefault(node.name, []).append(lambda made=made: made)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=("append" | "add")), args=[value]):
                found.setdefault(name, []).append(lambda given=value: Items(evaluate(given, scope)))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=("extend" | "update")), args=[value]):
                found.setdefault(name, []).append(lambda given=value: evaluate(given, scope))
            case _:
                pass
    return found


def _evaluate_item_assignment(target: ast.Subscript, value: ast.expr, scope: Scope) -> Shape:
    key = evaluate(target.slice, scope)
    made = evaluate(value, scope)
    return Fields(tuple((text, made) for text in sorted(key.options))) if isinstance(key, Text) else None


def _find_popped_keys(body: ast.AST | None, name: str) -> set[str]:
    found: set[str] = set()
    for node in _walk_function(body):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=of), attr="pop"), args=[ast.Constant(value=str() as key)]
            ):
                if of == name:
                    found.add(key)
            case _:
                pass
    return found


@cache
def _walk_function(body: ast.AST | None) -> list[ast.AST]:
    """Return the nodes of a function, without those of nested functions and classes."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(body) if body is not None else ():
        found.append(node)
        if not isinstance(node, Scoped):
            found += _walk_function(node)
    return found


def _evaluate_with(value: ast.expr, scope: Scope) -> Shape:
    """Return the shape that `with value as name` binds to the name."""
    if isinstance(value, ast.Call):
        function = evaluate(value.func, scope)
        if isinstance(function, Function) and _is_decorated(function.node, "contextmanager"):
            return iterate(evaluate(value, scope))
        if isinstance(function, External) and value.args:  # closing(x)
            return evaluate(value.args[0], scope)
    return evaluate(value, scope)


def _is_decorated(node: ast.AST, *names: str) -> bool:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return any(ast.unparse(each).partition("(")[0].rpartition(".")[2] in names for each in decorators)


# --- Annotations ------------------------------------------------------------------------------------------------

SEQUENCES = {
    *("list", "set", "frozenset", "Sequence", "Iterable", "Iterator", "Collection", "deque", "Generator"),
    *("AsyncIterator", "AsyncGenerator", "AsyncIterable", "Set", "AbstractSet"),
}
MAPPINGS = {"dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict"}
TRANSPARENT = {"Optional", "Annotated", "Final", "ClassVar", "Awaitable", "Required", "NotRequired"}


def read_annotation(node: ast.AST | None, scope: Scope) -> Shape:
    """Return the shape of values with this annotation."""
    match node:
        case ast.Constant(value=str() as quoted):
            return read_annotation(ast.parse(quoted, mode="eval").body, scope)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _join(read_annotation(left, scope), read_annotation(right, scope))
        case ast.Subscript(value=base, slice=given):
            parts = given.elts if isinstance(given, ast.Tuple) else [given]
            return _read_generic(evaluate(base, scope), parts, scope)
        case ast.Name() | ast.Attribute():
            meant = evaluate(node, scope)
            if isinstance(meant, Class):
                return Instance(meant)
            if isinstance(meant, External):
                return Fields(is_open=True) if meant.name.rpartition(".")[2] in MAPPINGS else None
            return _read_alias(node, scope) if isinstance(node, ast.Name) else None
        case _:
            return None


def _read_generic(base: Shape, parts: list[ast.expr], scope: Scope) -> Shape:
    if isinstance(base, Class):
        return Instance(base)
    name = base.name.rpartition(".")[2] if isinstance(base, External) else ""
    if name in SEQUENCES:
        return Items(read_annotation(parts[0], scope))
    if name in MAPPINGS:
        return Fields(rest=read_annotation(parts[-1], scope), is_open=True)
    if name == "tuple":
        if isinstance(parts[-1], ast.Constant):  # tuple[X, ...]
            return Items(read_annotation(parts[0], scope))
        return Row(tuple(read_annotation(part, scope) for part in parts))
    return read_annotation(parts[0], scope) if name in TRANSPARENT else None


def _read_alias(node: ast.Name, scope: Scope) -> Shape:
    """Resolve a type alias of the package."""
    module, name = scope.module, node.id
    for _ in range(4):
        bound = module.names.get(name)
        if isinstance(bound, ast.Assign | ast.AnnAssign) and bound.value is not None:
            return _guard_recursion((bound, "alias"), partial(read_annotation, bound.value, Scope(module)))
        home, _, name = module.imports.get(name, "").rpartition(".")
        if home not in load_modules():
            return None
        module = load_modules()[home]
    return None


def _is_informative(shape: Shape) -> bool:
    match shape:
        case Instance() | Class():
            return True
        case Items(each):
            return _is_informative(each)
        case Row(parts):
            return any(map(_is_informative, parts))
        case Fields(known, rest):
            return bool(known) or _is_informative(rest)
        case _:
            return False


# --- Expressions ------------------------------------------------------------------------------------------------


def evaluate(node: ast.AST, scope: Scope) -> Shape:
    return _guard_recursion((node, scope), lambda: _evaluate(node, scope))


def _evaluate(node: ast.AST, scope: Scope) -> Shape:
    match node:
        case ast.Constant(value=str() as text):
            return Text(frozenset({text}))
        case ast.Constant(value=bytes() as data):
            return Text(frozenset({data.decode("latin-1")}))
        case ast.Name(id=name):
            return scope.lookup(name)
        case ast.Attribute(value=value, attr=name):
            return get_attribute(evaluate(value, scope), name)
        case ast.Call():
            return _evaluate_call_node(node, scope)
        case ast.Dict(keys=keys, values=values):
            return _evaluate_dict(zip(keys, values, strict=True), scope)
        case ast.List(elts=parts) | ast.Set(elts=parts) | ast.Tuple(elts=parts):
            return _evaluate_sequence(node, parts, scope)
        case ast.ListComp(elt=elt) | ast.SetComp(elt=elt) | ast.GeneratorExp(elt=elt):
            return Items(evaluate(elt, enter_comprehension(node, scope)))
        case ast.DictComp(key=key, value=value):
            inner = enter_comprehension(node, scope)
            return _make_fields(evaluate(key, inner), evaluate(value, inner))
        case ast.JoinedStr(values=parts):
            return _join_texts([_format_part(part, scope) for part in parts])
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _add(evaluate(left, scope), evaluate(right, scope))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _join(evaluate(left, scope), evaluate(right, scope))
        case ast.BoolOp(op=ast.And(), values=values):
            return evaluate(values[-1], scope)
        case ast.BoolOp(values=values):
            return join(evaluate(value, scope) for value in values)
        case ast.IfExp(body=body, orelse=orelse):
            return _join(evaluate(body, scope), evaluate(orelse, scope))
        case ast.Subscript(value=value, slice=key):
            return _get_item(evaluate(value, scope), key, scope)
        case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
            return evaluate(value, scope)
        case ast.Lambda():
            return Function(scope.module, node, None, scope)
        case _:
            return None


def _format_part(part: ast.AST, scope: Scope) -> Shape:
    match part:
        case ast.FormattedValue(value=value):
            found = evaluate(value, scope)
            return found if isinstance(found, Text) else Text(frozenset({ANY}))
        case _:
            return evaluate(part, scope)


def _join_texts(parts: Iterable[Shape]) -> Shape:
    options = [sorted(part.options) if isinstance(part, Text) else [ANY] for part in parts]
    if all(len(each) == 1 for each in options):
        return Text(frozenset({"".join(each[0] for each in options)}))
    return _make_text("".join(each) for each in product(*options))


def _add(left: Shape, right: Shape) -> Shape:
    if isinstance(left, Text) or isinstance(right, Text):
        return _join_texts([left, right])
    return _join(left, right)


def _evaluate_dict(pairs: Iterable[tuple[ast.expr | None, ast.expr]], scope: Scope) -> Shape:
    found: dict[str, Shape] = {}
    rest: Shape = None
    is_open = False
    for key, value in pairs:
        made = evaluate(value, scope)
        if key is not None:
            made = _make_fields(evaluate(key, scope), made)
        elif isinstance(made, Instance):  # within what asdict made
            made = Fields(tuple(read_fields(made.of).items()))
        if isinstance(made, Fields):
            found |= dict(made.known)
            rest, is_open = _join(rest, made.rest), is_open or made.is_open
        elif key is None:
            is_open = True
    return Fields(tuple(found.items()), rest, is_open)


def _make_fields(key: Shape, value: Shape) -> Fields:
    options = sorted(key.options) if isinstance(key, Text) else [ANY]
    known = tuple((text, value) for text in options if text != ANY)
    return Fields(known, value if ANY in options else None, ANY in options)


def _evaluate_sequence(node: ast.AST, parts: list[ast.expr], scope: Scope) -> Shape:
    if any(isinstance(part, ast.Starred) for part in parts) or not isinstance(node, ast.Tuple):
        each = [
            iterate(evaluate(part.value, scope)) if isinstance(part, ast.Starred) else evaluate(part, scope)
            for part in parts
        ]
        return Items(join(each))
    return Row(tuple(evaluate(part, scope) for part in parts))


Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


def enter_comprehension(node: Comprehension, scope: Scope) -> Scope:
    """Return the scope inside a comprehension."""
    inner = scope
    for each in node.generators:
        names = [part.id for part in ast.walk(each.target) if isinstance(part, ast.Name)]
        inner = Scope(
            scope.module, None, {name: partial(_evaluate_loop_variable, each, inner, name) for name in names}, inner
        )
    return inner


def _evaluate_loop_variable(each: ast.comprehension, scope: Scope, name: str) -> Shape:
    return bind(each.target, iterate(evaluate(each.iter, scope))).get(name)


def _get_item(value: Shape, key: ast.expr, scope: Scope) -> Shape:
    match value:
        case Fields():
            name = evaluate(key, scope)
            return join(map(value.get, sorted(name.options))) if isinstance(name, Text) else value.values()
        case Row(parts) if isinstance(key, ast.Constant) and isinstance(key.value, int) and key.value < len(parts):
            return parts[key.value]
        case Items() | Row():
            return value if isinstance(key, ast.Slice) else iterate(value)
        case Class() | External():
            return value  # list[str]
        case _:
            return None


# --- Attributes and calls ---------------------------------------------------------------------------------------


def get_attribute(value: Shape, name: str) -> Shape:
    match value:
        case ModuleName(home):
            return _resolve_dotted(f"{home}.{name}")
        case External(home):
            return External(f"{home}.{name}")
        case Instance(of):
            return _get_member(of, name, value)
        case Class():
            return _get_class_member(value, name)
        case Fields() | Items() | Row() | Text():
            return Method(name, value)
        case _:
            return None


def list_bases(of: Class) -> Iterator[Class]:
    """Yield a class and its base classes in the package."""
    yield of
    for base in of.node.bases:
        if isinstance(found := evaluate(base, Scope(of.module)), Class):
            yield from list_bases(found)


def read_fields(of: Class) -> dict[str, Shape]:
    """Return the annotated fields of a class by name."""
    found: dict[str, Shape] = {}
    for each in reversed(list(list_bases(of))):
        for statement in each.node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if "ClassVar" not in ast.unparse(kind):
                    found[name] = read_annotation(kind, Scope(each.module))
                case _:
                    pass
    return found


def _get_member(of: Class, name: str, instance: Shape) -> Shape:
    for each in list_bases(of):
        for node in each.node.body:
            if isinstance(node, FunctionNode) and node.name == name:
                method = Function(each.module, node, instance)
                return evaluate_call(method) if _is_decorated(node, "property", "cached_property") else method
        if name in (own := read_fields(each)):
            return own[name]
        if found := _evaluate_attribute(each, name, instance):
            return found
    return None


def _evaluate_attribute(of: Class, name: str, instance: Shape) -> Shape:
    found: Shape = None
    for method, node in _find_assigned_attributes(of.node).get(name, []):
        scope = enter_function(Function(of.module, method, instance))
        if isinstance(node, ast.AnnAssign):
            found = _join(found, read_annotation(node.annotation, scope))
        else:
            found = _join(found, evaluate(node.value, scope))
    return found


@cache
def _find_assigned_attributes(of: ast.ClassDef) -> dict[str, list[tuple[FunctionNode, ast.Assign | ast.AnnAssign]]]:
    """Map attributes to the methods and statements that assign them on `self`."""
    found: dict[str, list[tuple[FunctionNode, ast.Assign | ast.AnnAssign]]] = {}
    for method in (each for each in of.body if isinstance(each, FunctionNode)):
        for node in _walk_function(method):
            match node:
                case ast.Assign(targets=[ast.Attribute(attr=attr, value=ast.Name(id="self"))]):
                    found.setdefault(attr, []).append((method, node))
                case ast.AnnAssign(target=ast.Attribute(attr=attr, value=ast.Name(id="self"))):
                    found.setdefault(attr, []).append((method, node))
                case _:
                    pass
    return found


def _get_class_member(of: Class, name: str) -> Shape:
    for each in list_bases(of):
        for node in each.node.body:
            if isinstance(node, FunctionNode) and node.name == name:
                return Function(each.module, node, Instance(of))
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return evaluate(node.value, Scope(each.module))
    return None


def enter_function(function: Function, given: Mapping[str, Shape] | None = None) -> Scope:
    """Return the scope of a function body. Parameters without an argument have the shape of their annotation."""
    node, outer = function.node, function.scope or Scope(function.module)
    arguments = node.args
    all_names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    bound: dict[str, Callable[[], Shape]] = {}
    for place, each in enumerate(all_names):
        if place == 0 and function.bound is not None and not _is_decorated(node, "staticmethod"):
            bound[each.arg] = partial(_identity, function.bound)
        else:
            bound[each.arg] = partial(_evaluate_parameter, (given or {}).get(each.arg), each.annotation, outer)
    if arguments.vararg:
        bound[arguments.vararg.arg] = partial(_evaluate_varargs, arguments.vararg.annotation, outer)
    if arguments.kwarg:
        bound[arguments.kwarg.arg] = partial(_identity, (given or {}).get("**", Fields(is_open=True)))
    return Scope(function.module, node, bound, outer)


def _identity(shape: Shape) -> Shape:
    return shape


def _evaluate_varargs(written: ast.expr | None, scope: Scope) -> Shape:
    return Items(read_annotation(written, scope))


def _evaluate_parameter(given: Shape, written: ast.expr | None, scope: Scope) -> Shape:
    annotated = read_annotation(written, scope)
    if isinstance(given, Instance) and isinstance(annotated, Instance):
        return given
    return annotated if _is_informative(annotated) and not _is_informative(given) else given or annotated


def bind_arguments(node: ast.Call, function: Function, scope: Scope) -> dict[str, Shape]:
    """Return the shape of the argument for each parameter of a call."""
    names = [each.arg for each in (*function.node.args.posonlyargs, *function.node.args.args)]
    if function.bound is not None and not _is_decorated(function.node, "staticmethod"):
        names = names[1:]
    found: dict[str, Shape] = {}
    for name, value in zip(names, node.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        found[name] = evaluate(value, scope)
    known = {*names, *(each.arg for each in function.node.args.kwonlyargs)}
    more: dict[str, Shape] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            if isinstance(spread := evaluate(keyword.value, scope), Fields):
                more |= dict(spread.known)
        else:
            (found if keyword.arg in known else more)[keyword.arg] = evaluate(keyword.value, scope)
    return {**found, "**": Fields(tuple(more.items()))} if function.node.args.kwarg else found


def evaluate_call(function: Function, given: Mapping[str, Shape] | None = None) -> Shape:
    """Return the shape of a result: from the annotation if it names a class, otherwise from the body."""
    node = function.node
    if isinstance(node, ast.Lambda):
        return evaluate(node.body, enter_function(function, given))
    annotated = read_annotation(node.returns, function.scope or Scope(function.module))
    if _is_informative(annotated):
        return annotated
    if isinstance(node.returns, ast.Constant) and node.returns.value is None:
        return None
    key = (node, tuple(sorted((given or {}).items(), key=lambda item: item[0])), function.bound)
    if key in _results:
        return _results[key]
    if node in _calling or len(_calling) >= MAX_CALLS:
        return annotated
    _results[key] = result = _evaluate_body(node, lambda: _evaluate_returns(function, given)) or annotated
    return result


_results: dict[object, Shape] = {}
_calling: list[FunctionNode] = []


def _evaluate_body(node: FunctionNode, make: Callable[[], Shape]) -> Shape:
    """Evaluate the body of a function, independent of the depth of the calling expression."""
    around = set(_active)
    _active.clear()
    _calling.append(node)
    try:
        return make()
    finally:
        _calling.pop()
        _active.update(around)


def _evaluate_returns(function: Function, given: Mapping[str, Shape] | None) -> Shape:
    scope = enter_function(function, given)
    values: list[Shape] = []
    for node in _walk_function(function.node):
        match node:
            case ast.Return(value=ast.expr() as value):
                values.append(evaluate(value, scope))
            case ast.Yield(value=ast.expr() as value):
                values.append(Items(evaluate(value, scope)))
            case ast.YieldFrom(value=value):
                values.append(evaluate(value, scope))
            case _:
                pass
    return join(values)


def _evaluate_call_node(node: ast.Call, scope: Scope) -> Shape:
    match node.func:
        case ast.Attribute(value=ast.Name(id=name), attr="pop") if node.args:
            return _call_builtin_method("pop", scope.lookup(name, with_popped=True), node, scope)
        case ast.Attribute(value=value, attr=("model_dump" | "_asdict")):
            of = evaluate(value, scope)
            return Fields(tuple(read_fields(of.of).items())) if isinstance(of, Instance) else None
        case _:
            function = evaluate(node.func, scope)
    match function:
        case Class():
            return Instance(function)
        case Function():
            return evaluate_call(function, bind_arguments(node, function, scope))
        case Method(name, of):
            return _call_builtin_method(name, of, node, scope)
        case External(name):
            return _call_external(name.rpartition(".")[2], node, scope)
        case _:
            return None


def _call_builtin_method(name: str, of: Shape, node: ast.Call, scope: Scope) -> Shape:
    match name, of:
        case "items", Fields():
            return Items(Row((iterate(of), of.values())))
        case "keys", Fields():
            return Items(iterate(of))
        case "values", Fields():
            return Items(of.values())
        case (("get" | "pop" | "setdefault"), Fields()) if node.args:
            return _get_item(of, node.args[0], scope)
        case (("copy" | "encode" | "decode" | "strip" | "lower"), _):
            return of
        case "join", Text() if node.args:
            return Text(frozenset({ANY}))
        case _:
            return None


def _call_external(name: str, node: ast.Call, scope: Scope) -> Shape:
    values = [evaluate(each, scope) for each in node.args]
    match name, values:
        case (("asdict" | "vars"), [Instance(of)]):
            return Fields(tuple(read_fields(of).items()))
        case (("list" | "tuple" | "sorted" | "reversed" | "set" | "frozenset" | "iter"), [first]):
            return Items(iterate(first))
        case (("replace" | "next" | "max" | "min" | "abs" | "copy" | "deepcopy"), [first, *_]):
            return iterate(first) if name == "next" else first
        case "dict", [Fields() as first]:
            return first
        case "dict", _:
            return Fields(tuple((each.arg, evaluate(each.value, scope)) for each in node.keywords if each.arg))
        case "fromkeys", [first, *rest]:
            return _make_fields(iterate(first), rest[0] if rest else None)
        case "cast", [_, second]:
            return _join(read_annotation(node.args[0], scope), second)
        case "zip", _:
            return Items(Row(tuple(map(iterate, values))))
        case "enumerate", [first]:
            return Items(Row((None, iterate(first))))
        case (("map" | "filter"), [Function() as function, *rest]):
            names = [each.arg for each in function.node.args.args][function.bound is not None :]
            each = dict(zip(names, map(iterate, rest), strict=False))
            return Items(evaluate_call(function, each) if name == "map" else iterate(rest[0]))
        case "map", [Class() as made, *_]:
            return Items(Instance(made))
        case (("str" | "fspath"), [Text() as first]):
            return first
        case _:
            return None


# --- Results ----------------------------------------------------------------------------------------------------


def list_paths(shape: Shape, depth: int = 8) -> set[str]:
    """Return every key path of a JSON document, such as `queues[].org`; `*` is an unknown key."""
    match shape:
        case Fields(known, rest, is_open):
            pairs = [*known, *([(ANY, rest)] if is_open else [])]
            return _prefix_paths(pairs, depth)
        case Instance(of) if depth and not _is_enumeration(of):
            return _prefix_paths(read_fields(of).items(), depth)
        case Items(each):
            return {f"[]{_add_dot(path)}" for path in list_paths(each, depth)}
        case Row(parts):
            return {
                f"[{number}]{_add_dot(path)}" for number, part in enumerate(parts) for path in list_paths(part, depth)
            }
        case _:
            return set()


def _prefix_paths(pairs: Iterable[tuple[str, Shape]], depth: int) -> set[str]:
    found: set[str] = set()
    for key, value in pairs:
        below = list_paths(value, depth - 1) if depth else set[str]()
        found |= {f"{key}{_add_dot(path)}" for path in below} if below else {key}
    return found


def _add_dot(path: str) -> str:
    return path if path.startswith("[") else f".{path}"


def _is_enumeration(of: Class) -> bool:
    return any("Enum" in ast.unparse(base) for each in list_bases(of) for base in each.node.bases)


def walk(body: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield every node below this one in order, each with its scope."""
    pending = [(node, scope) for node in ast.iter_child_nodes(body)][::-1]
    while pending:
        node, around = pending.pop()
        yield node, around
        pending += [
            (each, inner) for each in ast.iter_child_nodes(node) for inner in [_find_scope(node, each, around)]
        ][::-1]


def _find_scope(node: ast.AST, child: ast.AST, scope: Scope) -> Scope:
    """Return the scope of a child of a node."""
    match node:
        case ast.ClassDef() if isinstance(child, FunctionNode):
            return Scope(scope.module, None, {OWNER: partial(_identity, Class(scope.module, node))}, scope)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            return _enter_function(node, scope)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return _enter_comprehension(node, scope)
        case _:
            return scope


OWNER = "<class>"
"""The name that the scope of methods has for their class."""


@cache
def _enter_function(node: FunctionNode | ast.Lambda, scope: Scope) -> Scope:
    owner = scope.bound[OWNER]() if OWNER in scope.bound else None
    if isinstance(owner, Class):
        return enter_function(Function(scope.module, node, Instance(owner)))
    return enter_function(Function(scope.module, node, None, scope))


_enter_comprehension = cache(enter_comprehension)


@cache
def walk_module(module: Module) -> list[tuple[ast.AST, Scope]]:
    """Return every node of a module, each with its scope."""
    return list(walk(module.tree, Scope(module)))


def walk_modules(*words: str) -> Iterator[tuple[ast.AST, Scope]]:
    """Yield every node of the modules whose source contains one of these words."""
    for module in load_modules().values():
        if any(word in module.text for word in words):
            yield from walk_module(module)


def find_calls(*words: str) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield every call in the modules whose source contains one of these words."""
    return ((node, scope) for node, scope in walk_modules(*words) if isinstance(node, ast.Call))
