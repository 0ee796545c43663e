"""Which handler gets which job, and under which options. Loaded once; all that is wrong is found then, all at once.

Parent and children load the same table from the same configuration, so that a number names a route in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from msgspec.json import Decoder

from fileq.config import (
    Config,
    RouteSettings,
    inherit_from_worker,
    route_from,
    secret_variables,
)
from fileq.core.errors import ConfigError
from fileq.core.job import Job
from fileq.core.own_jobs import is_own_type
from fileq.core.text import quoted_path
from fileq.core.units import format_duration
from fileq.core.webhook import DELIVERY_ROUTE, DELIVERY_TYPE
from fileq.files.globs import Globs
from fileq.handlers.bound_route import BoundRoute, built_in_route, delivery_route
from fileq.handlers.command_handler import command_problems, command_warnings
from fileq.handlers.event_loop import EventLoop
from fileq.handlers.extension_loading import load_middleware, producer_warnings
from fileq.handlers.hooks import BoundHook, load_hooks
from fileq.handlers.loaded_modules import handler_modules, keep_text, named_modules
from fileq.handlers.middleware import BoundMiddleware
from fileq.handlers.registry import REGISTRY, Registration, RetryIf
from fileq.handlers.route_chains import chain_problems, chain_warnings
from fileq.handlers.targets import Importer, InvalidTarget, is_async, unfitness
from fileq.handlers.task_definition import TaskDefinition

if TYPE_CHECKING:
    from fileq.webhooks.subscriptions import Subscriptions

COMMAND_TYPE = "command"
_DECORATED = "decorated:function"  # stands for a function that has no importable name
_LONGEST_TYPE = 100  # characters of a type that an error shows


class Routes:
    """The table, first match first. `loop` is where its async handlers run."""

    def __init__(
        self,
        routes: Sequence[BoundRoute],
        *,
        warnings: Sequence[str] = (),
        allows_commands: bool,
        is_traced: bool = False,
        queues: Sequence[str] = (),
        middleware: Sequence[BoundMiddleware] = (),
        hooks: Sequence[BoundHook] = (),
        named_modules: frozenset[str] = frozenset(),
    ) -> None:
        self._routes = tuple(routes)
        self._by_number = (*self._routes, delivery_route())  # DELIVERY_ROUTE is the last one
        self.is_traced = is_traced
        self.queues = tuple(queues)
        self.middleware = tuple(middleware)
        self.hooks = tuple(hooks)
        self.named_modules = named_modules  # by the configuration
        self._files = [(i, Globs([route.match])) for i, route in enumerate(routes) if route.match is not None]
        self._types: dict[str, int] = {}
        for i, route in enumerate(routes):
            if route.type is not None:
                self._types.setdefault(route.type, i)
        self._allows_commands = allows_commands
        self.warnings = tuple(warnings)
        self.loop = EventLoop()
        self.subscriptions: Subscriptions | None = None  # of webhooks; only a worker has them

    def enable_deliveries(self, subscriptions: Subscriptions) -> None:
        """Has the worker run deliveries of webhooks, and add them to its settlements. Their route is not in the table:
        it has no breaker and no limits, and it takes no other jobs."""
        self.subscriptions = subscriptions
        self._types[DELIVERY_TYPE] = DELIVERY_ROUTE

    @classmethod
    def load(cls, config: Config, *, app_dir: str) -> Routes:
        """The configured handlers, then the decorated ones. The default comes last, and only if none is configured."""
        loading = _Loading(config, app_dir)
        loading.import_modules()
        name = "handlers[{}]" if config.handlers_are_given else "the default"
        configured = [loading.configured(name.format(i), route) for i, route in enumerate(config.handlers)]
        decorated = [loading.decorated(registration) for registration in REGISTRY]
        routes = [*configured, *decorated] if config.handlers_are_given else [*decorated, *configured]
        if config.worker.allow_commands:
            routes.append(loading.shell())
        found = [route for route in routes if route is not None]
        middleware = load_middleware(config, loading.importer, loading.problems, loading.warnings)
        hooks = load_hooks(loading.problems)
        if problems := loading.problems or chain_problems(found):
            raise ConfigError(problems)
        keep_text(handler_modules(config, app_dir).values())
        return cls(
            found,
            warnings=[*loading.warnings, *chain_warnings(found), *producer_warnings(config)],
            allows_commands=config.worker.allow_commands,
            is_traced=config.observability.tracing.enabled,
            queues=config.worker.priorities,
            middleware=middleware,
            hooks=hooks,
            named_modules=named_modules(config),
        )

    def with_built_in(self, functions: Mapping[str, Callable[..., Any]], config: Config) -> Routes:
        """These routes and, after them, those of fileq's own types of jobs. Children have no such routes: the numbers
        of the others are the same there."""
        routes = copy(self)
        added = [built_in_route(type, function, config) for type, function in functions.items()]
        routes._routes = (*self._routes, *added)
        routes._by_number = (*routes._routes, delivery_route())
        routes._types = {
            route.type: i for i, route in enumerate(routes._routes) if route.type is not None
        } | self._types
        return routes

    def __getitem__(self, number: int) -> BoundRoute:
        return self._by_number[number]

    @property
    def names(self) -> list[str]:
        """The names of the routes, each once."""
        return list(dict.fromkeys(route.name for route in self))

    @property
    def types(self) -> tuple[str, ...]:
        """The types of jobs that a route takes, without those of fileq's own jobs."""
        return tuple(type for type in self._types if not is_own_type(type))

    def __iter__(self) -> Iterator[BoundRoute]:
        return iter(self._routes)

    def __len__(self) -> int:
        return len(self._routes)

    def find(self, job: Job, relative_path: str) -> int | None:
        """The number of the first route for this job: by its type if it has one, else by its file."""
        if job.type is not None:
            return self._types.get(job.type)
        if not relative_path:
            return None
        cut = relative_path.rfind("/") + 1
        prefix, name = relative_path[:cut], relative_path[cut:]
        return next((number for number, globs in self._files if globs.match(prefix, name)), None)

    def refusal(self, job: Job) -> str:
        """Why there is no handler for this job, and what to do about it."""
        if job.type is None:
            if not job.filepath:
                return "the job names neither a file nor a type"
            return f"no handler for {quoted_path(job.filepath)}; {self._advice_for(job.filepath)}"
        if job.type == COMMAND_TYPE and not self._allows_commands:
            return "commands in jobs are disabled; worker.allow_commands: true enables them"
        type = job.type[:_LONGEST_TYPE]  # another program can push a job with a type of a megabyte
        near = get_close_matches(type, self.types, n=1)
        known = ", ".join(self.types) or "none"
        advice = f"did you mean {near[0]!r}?" if near else f"known types: {known}"
        return f"no handler for type {type!r}; {advice}"

    def _advice_for(self, path: str) -> str:
        """For a file that no route takes: often `*.pdf` was meant for every directory."""
        name = path.rpartition("/")[2]
        for glob in (route.match for route in self if route.match is not None and "/" not in route.match):
            if Globs([f"**/{glob}"]).match("", name):
                return (
                    f"the route {glob!r} takes files of the top level only; '**/{glob}' takes those of every directory"
                )
        return "add a route that matches it"


class _Loading:
    """One load: what was found, and everything that is wrong."""

    def __init__(self, config: Config, app_dir: str) -> None:
        self._config = config
        self.importer = Importer(app_dir)
        self._names = {route.name for route in config.handlers if route.name is not None}
        self._taken: set[str] = set()
        self._hidden_variables = secret_variables(config.worker.pass_environment)
        self._invalid: dict[str, tuple[int, list[str]]] = {}  # what is wrong → its line of `problems`, and where
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def import_modules(self) -> None:
        for i, name in enumerate(self._config.imports):
            try:
                self.importer.module(name)
            except InvalidTarget as error:
                self._add_invalid(f"imports[{i}]", str(error))

    def _add_invalid(self, place: str, problem: str) -> None:
        """Reports a problem that several settings share in one line: often they name one module with an error in it."""
        line, places = self._invalid.setdefault(problem, (len(self.problems), []))
        if not places:
            self.problems.append("")
        places.append(place)
        *first, last = places
        if first:
            verb, _, rest = problem.partition(" ")  # names, uses
            problem = f"{verb.removesuffix('s')} {rest}"
        self.problems[line] = f"{', '.join(first)}{' and ' if first else ''}{last} {problem}"

    def configured(self, where: str, route: RouteSettings) -> BoundRoute | None:
        place = f"{where} ({f'type {route.type}' if route.match is None else route.match})"
        if route.command is not None:
            self.warnings += [f"{place} {line}" for line in command_warnings(route.command)]
            problems = [f"{place} {line}" for line in command_problems(route.command)]
            self.problems += problems
            return None if problems else self._bound(where, route.command[0], route, None)
        try:
            assert route.use is not None
            return self._bound(where, route.use, route, self.importer.function(route.use))
        except InvalidTarget as error:
            self._add_invalid(place, str(error))
            return None

    def decorated(self, registration: Registration) -> BoundRoute | None:
        where, function = registration.where, registration.function
        if fault := unfitness(function):
            self.problems.append(f"{where}, which {fault}")
            return None
        if (registration.match is None) == (registration.type is None):
            self.problems.append(f"{where} needs a glob or a type, one of them")
            return None
        route = self._read(registration)
        if route is None:
            return None
        return self._bound(where, registration.target, route, function, registration.retry_if)

    def shell(self) -> BoundRoute:
        return self._bound("worker.allow_commands", "shell", RouteSettings(type=COMMAND_TYPE, command=()), None)

    def _read(self, registration: Registration) -> RouteSettings | None:
        """The options as a configuration file would set them: with the same limits and the same error messages."""
        options = {name: _spelled(name, value) for name, value in registration.options.items()}
        takes = {"match": registration.match} if registration.match is not None else {"type": registration.type}
        try:
            return route_from({**takes, "use": _DECORATED, **options}, registration.where, self._config)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _bound(
        self,
        where: str,
        name: str,
        route: RouteSettings,
        function: Callable[..., Any] | None,
        retry_if: RetryIf | None = None,
    ) -> BoundRoute:
        options = inherit_from_worker(route, self._config.worker)
        decoder = self._payload_decoder(function) if isinstance(function, TaskDefinition) else None
        return BoundRoute(
            where=where,
            route_name=self._name_for(where, route),
            name=name,
            match=route.match,
            type=route.type,
            function=function.function if isinstance(function, TaskDefinition) else function,
            command=route.command or (),
            isolation=options.isolation,
            timeout=options.timeout,
            max_retries=options.max_retries,
            backoff=options.backoff,
            in_place=route.in_place,
            safe_open=options.safe_open,
            give_up_on=route.give_up_on,
            circuit_breaker=route.circuit_breaker or self._config.circuit_breaker,
            is_async=function is not None and is_async(function),
            hidden_variables=self._hidden_variables,
            max_running=route.max_running,
            max_running_total=route.max_running_total,
            rate=route.rate,
            is_task=isinstance(function, TaskDefinition),
            payload_decoder=decoder,
            retry_if=retry_if,
            on_completed=route.on_completed,
            on_dead=route.on_dead,
        )

    def _payload_decoder(self, task: TaskDefinition[Any, Any]) -> Decoder[Any] | None:
        try:
            return task.payload_decoder if task.payload_type is not Any else None
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _name_for(self, where: str, route: RouteSettings) -> str:
        """The name of the route: its own, else its type, else its glob. A number tells equal types and globs apart."""
        if route.name is not None:
            if route.name in self._taken:
                self.problems.append(f"{where} is named {route.name!r}, as another route is; choose another name")
            self._taken.add(route.name)
            return route.name
        wanted = route.type if route.type is not None else route.match or ""
        candidates = chain((wanted,), (f"{wanted} ({n})" for n in count(2)))
        name = next(name for name in candidates if name not in self._taken and name not in self._names)
        self._taken.add(name)
        return name


def _spelled(name: str, value: Any) -> Any:
    """An option given in code, spelled as in a configuration file: seconds with their unit, classes by their names."""
    if name == "timeout":
        return _duration(value)
    if name == "backoff" and isinstance(value, Mapping):
        return {key: _duration(item) if key in ("base", "max") else item for key, item in value.items()}
    if name == "backoff" and isinstance(value, list | tuple):
        return [_duration(item) for item in value]
    if name == "circuit_breaker" and isinstance(value, Mapping):
        return {key: _duration(item) if key in ("window", "cooldown_period") else item for key, item in value.items()}
    if name in ("on_completed", "on_dead") and not isinstance(value, str):
        return getattr(value, "name", value)
    if name == "give_up_on":
        return [_class_name(item) if isinstance(item, type) else item for item in value]
    return value


def _class_name(cls: type) -> str:
    """With its module, unless it was made inside a function, which no dotted name leads to."""
    return cls.__name__ if "<" in cls.__qualname__ else f"{cls.__module__}.{cls.__qualname__}"


def _duration(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return format_duration(value) if is_number and value >= 0 else value
