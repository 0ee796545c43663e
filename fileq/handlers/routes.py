"""Which handler gets which job, and under which options. Loaded once, and again for a reload; all that is wrong is
found then, all at once.

Parent and children load the same table from the same configuration, so that a number names a route in both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import timedelta
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.json import Decoder, encode

from fileq.config import Config
from fileq.config.load import route_from
from fileq.config.resolve import with_general_options
from fileq.config.schema import BackoffSettings, CircuitBreakerSettings, RouteSettings
from fileq.config.show import secret_variables
from fileq.core.delivery import CHECK_TYPE
from fileq.core.errors import ConfigError
from fileq.core.job import Job
from fileq.core.outcome import EndingPayload
from fileq.core.own_jobs import is_own_type
from fileq.core.schedule import job_payload
from fileq.core.text import did_you_mean, quoted_path
from fileq.core.units import Rate, format_duration
from fileq.core.webhook import DELIVERY_ROUTE, DELIVERY_TYPE, RETRY_DELAYS_S, TIMEOUT_S
from fileq.files.globs import Globs, alternatives, has_literal_brace
from fileq.handlers import extensions
from fileq.handlers.command_handler import command_problems, command_warnings
from fileq.handlers.context import no_handler
from fileq.handlers.event_loop import EventLoop
from fileq.handlers.extensions import Extension, load_hooks, load_middleware, producer_warnings
from fileq.handlers.importing import (
    Importer,
    InvalidTarget,
    described,
    handler_modules,
    is_async,
    keep_text,
    named_modules,
    unfitness,
)
from fileq.handlers.registry import LONGEST_NAME, REGISTRY, Registration, RetryIf, TaskDefinition, payload_fault

if TYPE_CHECKING:
    from fileq.webhooks.subscriptions import Subscriptions

# A route as a worker uses it, and the routes of jobs of fileq itself, which no configuration has to name.

BUILT_IN_TIMEOUT_S = 3600.0  # a directory may be large
_MARGIN_S = 10.0  # a delivery ends by itself after TIMEOUT_S; its executor waits a little longer


class BoundRoute(Struct, frozen=True, kw_only=True):
    """A route with its handler imported and its options complete: those that it does not set are the worker's. A route
    to a command has no function. A route with neither function nor command runs the commands that jobs contain."""

    where: str
    route_name: str
    name: str
    function: Callable[..., Any] | None
    is_async: bool = False
    is_task: bool = False
    is_built_in: bool = False  # a job of fileq itself, which runs in the worker process, without middleware
    payload_decoder: Decoder[Any] | None = None  # of a task
    retry_if: RetryIf | None = None
    hidden_variables: tuple[str, ...] = ()  # of the environment, which a command does not get
    # As in RouteSettings:
    match: str | None = None
    type: str | None = None
    command: tuple[str, ...] = ()
    isolation: Literal["process", "thread", "delivery"]
    timeout: float
    max_retries: int
    backoff: BackoffSettings
    in_place: bool = False
    safe_open: bool = False
    give_up_on: tuple[int | str, ...] = ()
    circuit_breaker: CircuitBreakerSettings = CircuitBreakerSettings(enabled=False)
    max_running: int | None = None
    max_running_total: int | None = None
    rate: Rate | None = None
    on_completed: str | None = None
    on_dead: str | None = None

    def __str__(self) -> str:
        takes = f"type {self.type}" if self.type is not None else f"{self.match}"
        return f"{self.where}: {takes} → {self.name}"


def built_in_route(type: str, function: Callable[..., Any], config: Config) -> BoundRoute:
    """The route of a type of fileq's own jobs. The sender of a file decides how long its check takes, so a check has
    the time of any job of a file. The others are about directories."""
    timeout_s = config.worker.timeout
    return BoundRoute(
        where="built in",
        route_name=type,
        name=type,
        type=type,
        function=function,
        isolation="thread",
        timeout=timeout_s if type == CHECK_TYPE else max(timeout_s, BUILT_IN_TIMEOUT_S),
        max_retries=config.worker.max_retries,
        backoff=config.worker.backoff,
        is_built_in=True,
    )


def delivery_route() -> BoundRoute:
    return BoundRoute(
        where="webhooks",
        route_name=DELIVERY_TYPE,
        name=DELIVERY_TYPE,
        type=DELIVERY_TYPE,
        function=None,
        isolation="delivery",
        timeout=TIMEOUT_S + _MARGIN_S,
        max_retries=len(RETRY_DELAYS_S),
        backoff=BackoffSettings.from_list(RETRY_DELAYS_S),
    )


_ROUTE_OPTIONS = {*BoundRoute.__struct_fields__} & {*RouteSettings.__struct_fields__} - {"name", "command"}
COMMAND_TYPE = "command"
_DECORATED = "decorated:function"  # stands for a function that has no importable name


class Routes:
    """The table, first match first. `loop` is where its async handlers run."""

    def __init__(
        self,
        routes: Sequence[BoundRoute],
        config: Config,
        warnings: Sequence[str] = (),
        middleware: Sequence[Extension] = (),
        hooks: Sequence[Extension] = (),
    ) -> None:
        self._routes = tuple(routes)
        self._by_number = (*self._routes, delivery_route())  # DELIVERY_ROUTE is the last one
        self.is_traced = config.observability.tracing.enabled
        self.queues = config.worker.priorities
        self.middleware = tuple(middleware)
        self.hooks = tuple(hooks)
        self.named_modules = named_modules(config)
        self._files = [(i, Globs([route.match])) for i, route in enumerate(routes) if route.match is not None]
        self._types: dict[str, int] = {}
        for i, route in enumerate(routes):
            if route.type is not None:
                self._types.setdefault(route.type, i)
        self._allows_commands = config.worker.allow_commands
        self.warnings = tuple(warnings)
        self.loop = EventLoop()
        self.has_all_types = False  # a follow-up of another type is refused: for tests
        self.subscriptions: Subscriptions | None = None  # of webhooks; only a worker has them

    def enable_deliveries(self, subscriptions: Subscriptions) -> None:
        """Has the worker run deliveries of webhooks, and add them to its settlements. Their route is not in the table:
        it has no breaker and no limits, and it takes no other jobs."""
        self.subscriptions = subscriptions
        self._types[DELIVERY_TYPE] = DELIVERY_ROUTE

    @classmethod
    def load(cls, config: Config, *, app_dir: str) -> Routes:
        """The configured handlers, then the decorated ones. The default comes last, and only if none is configured.
        Importing and inspecting handlers runs the user's code: whatever it raises is a ConfigError."""
        try:
            return cls._loaded(config, app_dir)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"the handlers can't be loaded: {described(error)}") from error

    @classmethod
    def _loaded(cls, config: Config, app_dir: str) -> Routes:
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
        warnings = [*loading.warnings, *hidden_task_warnings(found), *chain_warnings(found), *producer_warnings(config)]
        return cls(found, config, warnings, middleware, hooks)

    def with_built_in(self, functions: Mapping[str, Callable[..., Any]], config: Config) -> Routes:
        """These routes and, after them, those of fileq's own types of jobs. Children have no such routes: the numbers
        of the others are the same there."""
        routes = copy(self)
        added = [built_in_route(type, function, config) for type, function in functions.items()]
        routes._routes = (*self._routes, *added)
        routes._by_number = (*routes._routes, delivery_route())
        numbers = {route.type: i for i, route in enumerate(routes._routes) if route.type is not None}
        routes._types = numbers | self._types
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

    @property
    def globs(self) -> tuple[str, ...]:
        """Those of the files that a route takes."""
        return tuple(dict.fromkeys(route.match for route in self._routes if route.match is not None))

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
        type = job.type[:LONGEST_NAME]  # another program can push a job with a type of a megabyte
        return no_handler(type, self.types)

    def _advice_for(self, path: str) -> str:
        """For a file that no route takes: often `*.pdf` was meant for every directory, or for `.PDF` too."""
        name = path.rpartition("/")[2]
        for glob in (route.match for route in self if route.match is not None and "/" not in route.match):
            deeper = _in_every_directory(glob)
            if Globs([deeper]).match("", name):
                return (
                    f"the route {glob!r} takes files of the top level only; {deeper!r} takes those of every directory"
                )
        for glob in (route.match for route in self if route.match is not None and route.match.startswith("**/")):
            if Globs([glob.lower()]).match("", name.lower()):
                return f"the route {glob!r} would match if case did not matter; add one for this spelling"
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
        if self.problems and registration.target.partition(":")[0] not in sys.modules:
            return None  # its module failed after the decorator ran, which is reported already
        if fault := unfitness(function):
            self.problems.append(f"{where}, which {fault}")
            return None
        task, queues = registration.task, self._config.worker.priorities
        if task is not None and task.priority and task.priority not in queues:
            self.problems.append(f"{where}: priority is {task.priority!r}; it must be one of {', '.join(queues)}")
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
        task = function if isinstance(function, TaskDefinition) else None
        complete = with_general_options(route, self._config)
        options: dict[str, Any] = {option: getattr(complete, option) for option in _ROUTE_OPTIONS}
        return BoundRoute(
            where=where,
            route_name=self._name_for(where, route),
            name=name,
            function=task.function if task is not None else function,
            is_async=function is not None and is_async(function),
            is_task=task is not None,
            payload_decoder=self._payload_decoder(task) if task is not None else None,
            retry_if=retry_if,
            hidden_variables=self._hidden_variables,
            command=route.command or (),
            **options,
        )

    def _payload_decoder(self, task: TaskDefinition[Any, Any]) -> Decoder[Any] | None:
        if task.result_warning and task.result_warning not in self.warnings:
            self.warnings.append(task.result_warning)
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


_DURATIONS = ("base", "max", "window", "cooldown_period")  # in a backoff and a circuit breaker


def _spelled(name: str, value: Any) -> Any:
    """An option given in code, spelled as in a configuration file: seconds with their unit, classes by their names."""
    if name == "timeout":
        return _duration(value)
    if name in ("backoff", "circuit_breaker") and isinstance(value, Mapping):
        return {key: _duration(item) if key in _DURATIONS else item for key, item in value.items()}
    if name == "backoff" and isinstance(value, list | tuple):
        return [_duration(item) for item in value]
    if name in ("on_completed", "on_dead") and not isinstance(value, str):
        return getattr(value, "name", value)
    if name == "give_up_on":
        return [_class_name(item) if isinstance(item, type) else item for item in value]
    return value


def _class_name(cls: type) -> str:
    """With its module, unless it was made inside a function, which no dotted name leads to."""
    return cls.__name__ if "<" in cls.__qualname__ else f"{cls.__module__}.{cls.__qualname__}"


def _duration(value: Any) -> Any:
    value = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return format_duration(value) if is_number and value >= 0 else value


# Checks where `on_completed` and `on_dead` lead: never in a circle, and to types that a route takes. Does no I/O.

_OPTIONS = ("on_completed", "on_dead")


def chain_problems(routes: Sequence[BoundRoute]) -> list[str]:
    """One line for each route whose jobs could follow each other endlessly."""
    by_type: dict[str, BoundRoute] = {}
    for route in routes:
        if route.type is not None:
            by_type.setdefault(route.type, route)
    problems = []
    for type, route in by_type.items():
        for option in _OPTIONS:
            if way := _way(by_type, getattr(route, option), type, set()):
                circle = " → ".join((type, *way))
                problems.append(f"{route.where}: {option} forms a loop, so jobs would never end: {circle}")
    return problems


def hidden_task_warnings(routes: Sequence[BoundRoute]) -> Iterator[str]:
    """One line for each task whose jobs an earlier route takes: the options of its decorator have no effect."""
    first: dict[str, BoundRoute] = {}
    for route in routes:
        taker = first.setdefault(route.type, route) if route.type is not None else route
        if taker is not route and route.is_task:
            yield f"{taker.where} takes all jobs of type {route.type}, so the options of {route.where} have no effect"


def chain_warnings(routes: Sequence[BoundRoute]) -> Iterator[str]:
    types = {route.type for route in routes}
    for route in routes:
        for option in _OPTIONS:
            wanted = getattr(route, option)
            if wanted is not None and wanted not in types:
                yield f"{route.where} has {option}: {wanted}, but no route takes jobs of that type: they would be dead"


def _way(by_type: Mapping[str, BoundRoute], start: str | None, end: str, seen: set[str]) -> list[str]:
    """The types on a way from one type to another, both included; empty if there is none."""
    if start is None or start in seen or start not in by_type:
        return []
    if start == end:
        return [end]
    seen.add(start)
    ways = (_way(by_type, getattr(by_type[start], option), end, seen) for option in _OPTIONS)
    rest = next(filter(None, ways), [])
    return [start, *rest] if rest else []


# Warns of routes that are valid and may surprise: globs that match little, files that no route takes. Does no I/O.

_EVERY_FILE = ("**/*", "**")


def warnings_of(config: Config, routes: Routes) -> list[str]:
    """For routes that were loaded, decorated ones included."""
    patterns = [(route.where, route.match) for route in routes if route.match is not None]
    empty = [] if len(routes) else _empty(config)
    return [*empty, *_warnings(config, patterns, is_complete=True)]


def made_job_problems(config: Config, routes: Routes) -> Iterator[str]:
    """The schedules of the configuration whose jobs no route takes, and the schedules, `on_completed` and `on_dead`
    whose payload does not fit the task that gets it. A worker only warns of them: another may have the task."""
    tasks = {route.type for route in routes if route.is_task}
    for name, settings in config.schedules.items():
        type = settings.definition.type
        if not is_own_type(type) and type not in routes.types:
            advice = did_you_mean(type, routes.types, "add its module to imports, or a route")
            yield f"schedules.{name}: no task or route takes jobs of type {type!r}: they would be dead; {advice}"
            continue
        if type in tasks and (fault := payload_fault(type, encode(job_payload(settings.definition, 0, 0)))):
            yield f"schedules.{name}: {fault}; its jobs would be dead"
    for route in routes:
        path = "/sample" if route.type is None else None
        for option, error in {"on_completed": None, "on_dead": "OSError: sample"}.items():
            type, sample = getattr(route, option), EndingPayload("sample", route.type, path, error)
            fault = payload_fault(type, encode(sample)) if type in tasks else ""
            if fault and "`$.result" not in fault and "field `result`" not in fault:  # its value is not known yet
                yield f"{route.where} has {option}: {type}; {fault}; its jobs would be dead"


def warnings_before_import(config: Config) -> list[str]:
    """For the routes in the configuration alone. The modules in `imports` may define more."""
    patterns = [(f"handlers[{i}]", r.match) for i, r in enumerate(config.handlers) if r.match is not None]
    return [*_empty(config), *_warnings(config, patterns, is_complete=not config.imports)]


def _empty(config: Config) -> Iterator[str]:
    if not config.handlers and not config.imports:
        yield "handlers is empty: no job has a handler, and every job dies; add a route, or remove the key"
    elif not config.handlers:
        yield "handlers is empty: only jobs of the handlers in the imported modules can run"


def _warnings(config: Config, patterns: Sequence[tuple[str, str]], *, is_complete: bool) -> Iterator[str]:
    """`patterns`: where each route that takes files is defined, and its glob. `is_complete`: no other can exist."""
    globs = [glob for _, glob in patterns]
    included = [("producer.include_globs", glob) for glob in config.producer.include_globs]
    for where, glob in (*included, *patterns):
        directory, _, name = glob.rpartition("/")
        is_deep = "**" in glob.split("/") or ("{" in glob and "**" in glob)  # {a/**,b}/*.pdf
        if not name:
            yield f"{where} ({glob}) matches no file: it ends with a slash; for all files below it write '{glob}**'"
        elif not is_deep:
            place = f"directly in {directory!r}" if directory else "of the top level"
            deeper = _in_every_directory(glob)
            yield f"{where} ({glob}) matches only files {place}; for every directory write {deeper!r}"
        if has_literal_brace(glob):
            yield (
                f"{where} ({glob}) has a brace that lists no alternatives, and so matches only names with this brace; "
                r"write alternatives as {pdf,txt}, and a brace in a name as \{ or \}"
            )
    taken, wanted = (set(chain.from_iterable(map(alternatives, of))) for of in (globs, config.producer.include_globs))
    covers_all = any(glob in taken for glob in _EVERY_FILE) or wanted <= taken
    if globs and not covers_all and is_complete:
        yield (
            "no route matches every file: jobs for unrouted files die (NoHandler); "
            "add a last route with match: '**/*', or narrow producer.include_globs"
        )


def _in_every_directory(glob: str) -> str:
    """The glob that takes the same names in all directories below. `**` within a name is one star."""
    directory, _, name = glob.rpartition("/")
    name = re.sub(r"\*\*+", "*", name)
    return f"{directory}/**/{name}" if directory else f"**/{name}"


# Imports the handlers again, for a worker that reloads its configuration.
#
# Functions that are running keep the modules that they were imported with. Modules of Python and of other libraries
# stay.


def reload_routes(config: Config, serving: Routes, *, app_dir: str) -> Routes:
    """The routes with all handlers imported again. `serving` are those in use. ConfigError leaves the modules and the
    decorated functions as they were. It is also raised if a type would be lost that `serving` has, because its waiting
    jobs would die; a type that the configuration dropped may go."""
    modules = handler_modules(config, app_dir)
    before, extensions_before = tuple(REGISTRY), extensions.EXTENSIONS
    for name in modules:
        del sys.modules[name]
    REGISTRY.reset(one for one in before if one.function.__module__ not in modules)
    extensions.EXTENSIONS = extensions_before.without(modules)
    try:
        routes = Routes.load(config, app_dir=app_dir)
        if lost := list(_lost_types(before, serving, routes)):
            raise ConfigError(_refusal(lost))
    except BaseException:
        REGISTRY.reset(before)
        extensions.EXTENSIONS = extensions_before
        sys.modules.update(modules)
        raise
    return routes


def _lost_types(decorated: Iterable[Registration], serving: Routes, routes: Routes) -> Iterator[str]:
    """The types of decorated functions that are served and not in the new routes. Without those of a module that is no
    longer imported after the configuration has dropped a module: the operator wants them gone. A route of the
    configuration itself goes only if its entry does."""
    lost = {route.type for route in serving} - {route.type for route in routes}
    has_dropped_module = bool(serving.named_modules - routes.named_modules)
    for one in decorated:
        is_dropped = has_dropped_module and one.function.__module__ not in sys.modules
        if one.type is not None and one.type in lost and not is_dropped:
            yield one.type


def _refusal(lost: list[str]) -> str:
    names = ", ".join(map(repr, lost))
    is_one = len(lost) == 1
    return (
        f"this worker serves the type{'' if is_one else 's'} {names}, which the modules no longer define: pending jobs "
        f"would die; define {'it' if is_one else 'them'} again, remove the module from imports, or restart the worker"
    )
