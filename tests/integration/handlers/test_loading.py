"""Handlers are imported from the user's modules, and each problem with them is one line."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fileq.config import config_from
from fileq.core.errors import ConfigError
from fileq.handlers import extensions, registry
from fileq.handlers.extensions import load_before_enqueue
from fileq.handlers.routes import Routes, reload_routes


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for the user's modules; what was imported from it is removed from sys.modules afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    registry.REGISTRY.reset()
    monkeypatch.setattr(extensions, "EXTENSIONS", extensions.Extensions())
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(app_dir: Path | str, *handlers: dict[str, Any], imports: tuple[str, ...] = ()) -> Routes:
    config = config_from({"handlers": list(handlers), "imports": list(imports)})
    return Routes.load(config, app_dir=str(app_dir))


def problems(app: Path | str, *handlers: dict[str, Any], imports: tuple[str, ...] = ()) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(app, *handlers, imports=imports)
    return caught.value.problems


def using(target: str) -> dict[str, str]:
    return {"match": "**/*", "use": target}


def test_a_function_is_found_in_the_application_directory(app: Path) -> None:
    (app / "app_pkg").mkdir()
    tool = "class Tool:\n    @staticmethod\n    def extract(job, context): return 'x'\n"
    (app / "app_pkg" / "pdf.py").write_text(tool)
    routes = load(app, using("app_pkg.pdf:Tool.extract"))
    assert routes[0].function is not None
    assert routes[0].function(None, None) == "x"


def test_the_application_directory_is_by_default_the_working_directory(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (app / "here.py").write_text("async def handle(job, context): pass\n")
    monkeypatch.chdir(app)
    assert load("", using("here:handle"))[0].is_async


def test_the_application_directory_is_behind_the_standard_library_and_is_put_there_once(app: Path) -> None:
    """S1: it was first on the path, so a module in it replaced one of the standard library, also for fileq itself."""
    (app / "once.py").write_text("def handle(job, context): pass\n")
    (app / "this.py").write_text("raise AssertionError('not the one of the standard library')\n")
    load(app, using("once:handle"))
    load(app, using("once:handle"))
    assert sys.path.count(os.fspath(app)) == 1
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module("this")


def test_nothing_is_imported_from_a_working_directory_that_others_can_write_to(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: the module that the operator's own configuration names was imported from the sender's directory."""
    (app / "planted.py").write_text(f"import os; os.mkdir({str(app / 'was-here')!r})\n")
    app.chmod(0o777)
    monkeypatch.chdir(app)
    assert problems("", imports=("planted",)) == (
        f"no handlers are imported, because every user can write to {app}; --app-dir DIR names their directory",
    )
    assert not (app / "was-here").exists()
    assert load("", using("fileq.handlers:checksum")).names == ["fileq.handlers:checksum"]
    load(".", using("fileq.handlers:checksum"), imports=("planted",))
    assert (app / "was-here").exists(), "a directory that was named is used"


def test_imports_find_decorated_handlers_also_in_modules_that_they_import(app: Path) -> None:
    (app / "main_mod.py").write_text(
        'import fileq, other_mod\n@fileq.handler("*.a", timeout=5)\ndef a(job, context): pass\n'
    )
    (app / "other_mod.py").write_text('import fileq\n@fileq.handler(type="b")\ndef b(job, context): pass\n')
    routes = load(app, using("fileq.handlers:checksum"), imports=("main_mod",))
    assert [str(route) for route in routes] == [
        "handlers[0]: **/* → fileq.handlers:checksum",
        "@fileq.handler on other_mod:b: type b → other_mod:b",
        "@fileq.handler on main_mod:a: *.a → main_mod:a",
    ]


def test_decorated_handlers_of_a_module_named_in_use_are_found_too(app: Path) -> None:
    (app / "both.py").write_text(
        'import fileq\ndef plain(job, context): pass\n@fileq.handler("*.a")\ndef a(job, context): pass\n'
    )
    assert [route.name for route in load(app, using("both:plain"))] == ["both:plain", "both:a"]


def test_all_problems_are_reported_at_once_one_line_each(app: Path) -> None:
    (app / "broken.py").write_text("x = 1\ny = 1 / 0\n")
    (app / "syntax.py").write_text("1 +\n")
    (app / "needy.py").write_text("import no_such_library.part\n")
    (app / "leaving.py").write_text("import sys; sys.exit('bye')\n")
    (app / "fine.py").write_text("def extract(job, context): pass\ndef short(path): pass\nnumber = 3\n")
    lines = problems(
        app,
        using("broken:handle"),
        using("syntax:handle"),
        using("needy:handle"),
        using("missing.module:handle"),
        using("fine:extrct"),
        using("fine:short"),
        using("fine:number"),
        {"type": "mail", "use": "leaving:handle"},
        using("fine:extract"),
        imports=("broken", "missing"),
    )
    assert lines == (
        "imports[0] and handlers[0] (**/*) name the module broken, which can't be imported: ZeroDivisionError: "
        f"division by zero ({app}/broken.py:2)",
        f"imports[1] names the module missing, but there is no missing in {app} or on Python's path",
        "handlers[1] (**/*) names the module syntax, which can't be imported: SyntaxError: "
        "invalid syntax (syntax.py, line 1)",
        f"handlers[2] (**/*) names the module needy, which can't be imported: ModuleNotFoundError: No module named "
        f"'no_such_library' ({app}/needy.py:1)",
        f"handlers[3] (**/*) names the module missing.module, but there is no missing in {app} or on Python's path",
        "handlers[4] (**/*) uses fine:extrct, but fine has no 'extrct'; did you mean 'extract'?",
        "handlers[5] (**/*) uses fine:short, which takes (path); a handler is called with (job, context)",
        "handlers[6] (**/*) uses fine:number, which is an int; a handler is a function",
        f"handlers[7] (type mail) names the module leaving, which can't be imported: SystemExit: bye "
        f"({app}/leaving.py:1)",
    )


def test_a_module_that_the_standard_library_hides_is_named(app: Path) -> None:
    import colorsys

    (app / "colorsys.py").write_text("def handle(job, context): pass\n")
    [line] = problems(app, using("colorsys:handle"))
    assert line == (
        f"handlers[0] (**/*) uses colorsys:handle, but colorsys has no 'handle'; it was imported from "
        f"{colorsys.__file__}; a module of the standard library hides one of the same name"
    )


def test_a_module_that_fails_is_executed_and_reported_only_once_though_several_routes_use_it(app: Path) -> None:
    counts = f"with open({str(app / 'count')!r}, 'a') as file: file.write('x')\n"
    (app / "counting.py").write_text(counts + "raise ValueError('no\\nway')\n")
    lines = problems(app, using("counting:a"), using("counting:b"), imports=("counting",))
    [line] = lines
    assert line.startswith("imports[0], handlers[0] (**/*) and handlers[1] (**/*) name the module counting, ")
    assert "ValueError: no | way" in line
    assert (app / "count").read_text() == "x"


def test_a_wrong_use_of_the_decorator_is_a_line_that_names_the_module(app: Path) -> None:
    (app / "bare.py").write_text("import fileq\n@fileq.handler\ndef a(job, context): pass\n")
    (line,) = problems(app, imports=("bare",))
    assert line.startswith("imports[0] names the module bare, in which @fileq.handler needs a glob or a type")


def test_an_application_module_goes_before_an_installed_one(app: Path) -> None:
    (app / "wcmatch_like.py").write_text("def handle(job, context): return 'ours'\n")
    elsewhere = app / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "wcmatch_like.py").write_text("def handle(job, context): return 'theirs'\n")
    sys.path.append(str(elsewhere))
    function = load(app, using("wcmatch_like:handle"))[0].function
    assert function is not None
    assert function(None, None) == "ours"


def extending(name: str) -> str:
    return (
        "import fileq\n\n"
        f"@fileq.middleware\ndef {name}_middleware(job, context, call): return call()\n\n"
        f"@fileq.hook('job.dead')\ndef {name}_hook(event): pass\n\n"
        f"@fileq.before_enqueue\ndef {name}_check(job): return job\n"
    )


def test_a_reload_replaces_middleware_and_hooks_and_an_error_leaves_them_as_they_were(app: Path) -> None:
    config = config_from({"imports": ["extras"]})
    (app / "extras.py").write_text(extending("old"))
    serving = Routes.load(config, app_dir=str(app))
    assert load_before_enqueue(config, app_dir=str(app)) is not None
    (app / "extras.py").write_text("syntax error")
    with pytest.raises(ConfigError):
        reload_routes(config, serving, app_dir=str(app))
    assert [one.target for one in Routes.load(config, app_dir=str(app)).middleware] == ["extras:old_middleware"]
    (app / "extras.py").write_text(extending("new"))
    routes = reload_routes(config, serving, app_dir=str(app))
    assert [one.target for one in (*routes.middleware, *routes.hooks)] == ["extras:new_middleware", "extras:new_hook"]
    kept = [*extensions.EXTENSIONS.before_enqueue]
    assert kept == ["extras:old_check", "extras:new_check"], "a running producer keeps what it was started with"


def test_a_reload_gives_the_routes_of_a_fresh_load_in_the_same_order(app: Path, tmp_path_factory: Any) -> None:
    """Children load the routes afresh, and the worker names a route by its number."""
    library = tmp_path_factory.mktemp("library")
    (library / "installed_mod.py").write_text('import fileq\n@fileq.handler("*.b")\ndef b(job, context): pass\n')
    (app / "own_mod.py").write_text(
        'import fileq\n@fileq.handler("*.a")\ndef a(job, context): pass\nimport installed_mod\n'
    )
    sys.path.append(str(library))
    config = config_from({"imports": ["own_mod"], "handlers": []})
    fresh = Routes.load(config, app_dir=str(app))
    assert fresh.names == ["own_mod:a", "installed_mod:b"]
    assert reload_routes(config, fresh, app_dir=str(app)).names == fresh.names
