"""Dependencies of tasks: values that the worker provides, declared as defaults of parameters.

`Depends(provider)` is created for each job, `Shared(provider)` once per process that runs jobs. A provider is a
function that returns a value or a context manager, or a generator that yields one value; each may be async. It may have
dependencies of its own, and parameters with the names of the task's arguments.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast, overload

from headrace.app.context import convert_exits
from headrace.errors import TaskInvalid

T = TypeVar("T")

Provider = Callable[..., Any]


@dataclass(frozen=True)
class Dependency:
    """The default of a parameter that the worker provides."""

    provider: Provider
    is_shared: bool

    def __repr__(self) -> str:
        return f"{'Shared' if self.is_shared else 'Depends'}({name_provider(self.provider)})"


@overload
def Depends(provider: Callable[..., AbstractAsyncContextManager[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., AbstractContextManager[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., Iterator[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., Awaitable[T]], /) -> T: ...
@overload
def Depends(provider: Callable[..., T], /) -> T: ...
def Depends(provider: Provider, /) -> Any:
    """Provide a parameter with a value that is created for each job, and closed after it."""
    return Dependency(provider, is_shared=False)


@overload
def Shared(provider: Callable[..., AbstractAsyncContextManager[T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., AbstractContextManager[T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., Iterator[T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., Awaitable[T]], /) -> T: ...
@overload
def Shared(provider: Callable[..., T], /) -> T: ...
def Shared(provider: Provider, /) -> Any:
    """Provide a parameter with a value that all jobs of a process share: created on first use, closed when the worker
    stops."""
    return Dependency(provider, is_shared=True)


def name_provider(provider: Provider) -> str:
    return str(getattr(provider, "__qualname__", provider))


@dataclass
class ProviderNode:
    """A provider, with the dependencies and arguments that it needs."""

    dependency: Dependency
    call: Provider  # the provider, or what a test replaces it with
    dependencies: dict[str, ProviderNode] = field(default_factory=dict[str, "ProviderNode"])
    arguments: tuple[str, ...] = ()  # names of arguments of the task

    @property
    def needs_loop(self) -> bool:
        """Whether it is created on the event loop: it is async or shared, or needs such a value."""
        return self.dependency.is_shared or is_async_provider(self.call)

    def find_on_loop(self) -> bool:
        return self.needs_loop or any(each.find_on_loop() for each in self.dependencies.values())


def is_async_provider(provider: Provider) -> bool:
    function = inspect.unwrap(provider)
    if inspect.isclass(provider):
        return hasattr(provider, "__aenter__") and not hasattr(provider, "__enter__")
    if not inspect.isroutine(function) and not isinstance(function, functools.partial):
        function = getattr(type(function), "__call__", function)  # noqa: B004 (an object that is called)
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


class DependencyPlan:
    """The dependencies of a task: what to create, in which order."""

    def __init__(
        self,
        task: str,
        dependencies: Mapping[str, Dependency],
        arguments: Mapping[str, Any],
        overrides: Mapping[Provider, Provider] | None = None,
    ) -> None:
        """Raises TaskInvalid for a cycle, and for a parameter of a provider that has no default and is no argument of
        the task. `arguments` maps the names of the task's arguments to their annotations."""
        self._task = task
        self._arguments = arguments
        self._overrides = overrides or {}
        self._nodes: dict[Dependency, ProviderNode] = {}
        self.parameters = {name: self._add(each, ()) for name, each in dependencies.items()}

    def _add(self, dependency: Dependency, path: tuple[Dependency, ...]) -> ProviderNode:
        if dependency in path:
            names = " → ".join(name_provider(each.provider) for each in (*path, dependency))
            raise TaskInvalid(f"Task {self._task!r}: its dependencies form a cycle: {names}.")
        if dependency in self._nodes:
            return self._nodes[dependency]
        call = self._overrides.get(dependency.provider, dependency.provider)
        node = ProviderNode(dependency, call)
        own_arguments: list[str] = []
        for parameter in inspect.signature(call).parameters.values():
            if isinstance(parameter.default, Dependency):
                node.dependencies[parameter.name] = self._add(parameter.default, (*path, dependency))
            elif parameter.name in self._arguments and not dependency.is_shared:
                own_arguments.append(parameter.name)
            elif parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                what = "a shared provider has no job" if dependency.is_shared else "the task has no such argument"
                raise TaskInvalid(
                    f"Task {self._task!r}: the parameter {parameter.name!r} of provider {name_provider(call)} has no "
                    f"value: {what}. Give it a default, or a dependency."
                )
        if dependency.is_shared and any(
            not each.is_shared for each in (n.dependency for n in node.dependencies.values())
        ):
            raise TaskInvalid(
                f"Task {self._task!r}: the shared provider {name_provider(call)} depends on a value of one job. Use "
                "Shared there, too."
            )
        node.arguments = tuple(own_arguments)
        self._nodes[dependency] = node
        return node

    @property
    def needs_loop(self) -> bool:
        """Whether a value must be created on the event loop before a function in a thread is called."""
        return any(each.find_on_loop() for each in self.parameters.values())


class SharedValues:
    """The shared values of one process, on one event loop."""

    def __init__(self) -> None:
        self.context: Context | None = None
        """Where the values are created; None: in the context of the job that first needs them. It is of no job, so that
        what a value does in the background is not done in the environment of that job."""
        self._stack = AsyncExitStack()
        self._values: dict[Dependency, Any] = {}
        self._locks: dict[Dependency, asyncio.Lock] = {}

    async def get(self, node: ProviderNode) -> Any:
        if node.dependency in self._values:
            return self._values[node.dependency]
        lock = self._locks.setdefault(node.dependency, asyncio.Lock())
        async with lock:
            if node.dependency not in self._values:
                context = self.context or copy_context()
                creating = asyncio.create_task(convert_exits(self._create(node)), context=context.copy())
                self._values[node.dependency] = await creating
        return self._values[node.dependency]

    async def _create(self, node: ProviderNode) -> Any:
        given = {name: await self.get(each) for name, each in node.dependencies.items()}
        return await _create_async(node.call, given, self._stack)

    async def close(self) -> None:
        """Close the values, the last created first."""
        self._values.clear()
        await self._stack.aclose()


class JobValues:
    """The values of one job. Closed in the reverse order, where they were created."""

    def __init__(self, plan: DependencyPlan, arguments: Mapping[str, Any], shared: SharedValues) -> None:
        self._plan = plan
        self._arguments = arguments
        self._shared = shared
        self._values: dict[Dependency, Any] = {}
        self.async_stack = AsyncExitStack()
        self.thread_stack = ExitStack()

    async def create_on_loop(self, *, everything: bool) -> None:
        """Create the values that need the event loop; all of them if `everything`."""
        self.async_stack.callback(self._values.clear)  # middleware may call the function again
        for node in self._plan.parameters.values():
            await self._create_on_loop(node, everything)

    async def _create_on_loop(self, node: ProviderNode, everything: bool) -> None:
        if node.dependency in self._values or not (everything or node.find_on_loop()):
            return
        if node.dependency.is_shared:
            self._values[node.dependency] = await self._shared.get(node)
            return
        must_exist = everything or node.needs_loop
        for each in node.dependencies.values():
            await self._create_on_loop(each, must_exist)
        if must_exist:
            self._values[node.dependency] = await _create_async(node.call, self._collect(node), self.async_stack)

    def create_in_thread(self) -> None:
        """Create the remaining values in the thread of the task."""
        self.thread_stack.callback(self._forget_except, frozenset(self._values))  # middleware may call it again
        for node in self._plan.parameters.values():
            self._create_in_thread(node)

    def _forget_except(self, kept: frozenset[Dependency]) -> None:
        for each in self._values.keys() - kept:
            del self._values[each]

    def _create_in_thread(self, node: ProviderNode) -> None:
        if node.dependency in self._values:
            return
        for each in node.dependencies.values():
            self._create_in_thread(each)
        self._values[node.dependency] = _create(node.call, self._collect(node), self.thread_stack)

    def _collect(self, node: ProviderNode) -> dict[str, Any]:
        given = {name: self._values[each.dependency] for name, each in node.dependencies.items()}
        return given | {name: self._arguments[name] for name in node.arguments if name in self._arguments}

    def list_parameters(self) -> dict[str, Any]:
        """Return the values by parameter of the task."""
        return {name: self._values[node.dependency] for name, node in self._plan.parameters.items()}


async def _create_async(provider: Provider, given: dict[str, Any], stack: AsyncExitStack) -> Any:
    function = inspect.unwrap(provider)
    if inspect.isasyncgenfunction(provider):
        return await stack.enter_async_context(asynccontextmanager(provider)(**given))
    if inspect.isgeneratorfunction(provider):
        return stack.enter_context(contextmanager(provider)(**given))
    found = provider(**given)
    if inspect.iscoroutinefunction(function) or inspect.isawaitable(found):
        found = await cast(Awaitable[Any], found)
    if is_mock(found):
        return found
    if hasattr(type(found), "__aenter__"):
        return await stack.enter_async_context(found)
    if hasattr(type(found), "__enter__"):
        return stack.enter_context(found)
    return found


def is_mock(value: object) -> bool:
    """Return whether a value is an object of `unittest.mock`: it has every method, but is no context manager."""
    mock = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(value, mock.NonCallableMock)


def _create(provider: Provider, given: dict[str, Any], stack: ExitStack) -> Any:
    if inspect.isgeneratorfunction(provider):
        return stack.enter_context(contextmanager(provider)(**given))
    found = provider(**given)
    if is_mock(found):
        return found
    if hasattr(type(found), "__enter__"):
        return stack.enter_context(found)
    if inspect.isawaitable(found) or hasattr(type(found), "__aenter__"):
        if inspect.iscoroutine(found):
            found.close()
        raise TypeError(
            f"The provider {name_provider(provider)} returned a {type(found).__qualname__}, which needs the event "
            "loop. The task runs in a thread: declare the provider with `async def`."
        )
    return found
