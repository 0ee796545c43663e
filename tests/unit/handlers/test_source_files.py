"""The files of the configured handlers are found without importing them."""

from __future__ import annotations

from pathlib import Path

from fileq.commands.admin.running_workers import source_files
from fileq.config import config_from

FILES = {
    "invoices.py": "import json, parsing\nraise SystemExit('imported')",
    "parsing.py": "from shop import prices",
    "shop/__init__.py": "",
    "shop/prices.py": "from . import tax\nfrom .rates import vat\nfrom fileq import Permanent",
    "shop/tax.py": "this is not Python",
    "shop/rates.py": "import shop.prices",
    "decorated.py": "",
    "unused.py": "",
}


def test_handlers_and_the_modules_that_they_import_are_found_below_the_directory(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    handlers = [
        {"match": "**/*.pdf", "use": "invoices:read"},
        {"match": "**/*.txt", "command": ["wc", "{filepath}"]},
        {"match": "**/*", "use": "fileq.handlers:checksum"},
        {"type": "other", "use": "not_here.at_all:run"},
    ]
    config = config_from({"handlers": handlers, "imports": ["decorated"]})
    found = {str(Path(file).relative_to(tmp_path)) for file in source_files(config, str(tmp_path))}
    assert found == set(FILES) - {"unused.py"}
