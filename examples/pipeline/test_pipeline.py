from __future__ import annotations

import json
from pathlib import Path

import pipeline
import pytest

import fileq
from fileq.testing import run


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ORDERS", str(tmp_path / "orders"))
    monkeypatch.setattr(pipeline, "BILLS", str(tmp_path / "bills"))


def test_a_list_is_split_by_customer(tmp_path: Path) -> None:
    orders = tmp_path / "orders.csv"
    orders.write_text("customer,amount\nann,3\nbob,4\nann,5\n")
    for _ in range(2):  # a repetition does no harm
        assert run(pipeline.split, orders, id="j1") == {"customers": 2}
    assert json.loads((tmp_path / "orders" / "j1-ann.json").read_text()) == [3, 5]


@pytest.mark.parametrize("text", ["name\nann\n", "customer,amount\nann,much\n", "customer,amount\nann\n"])
def test_what_is_no_list_of_orders_dies_at_once(text: str, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text(text)
    with pytest.raises(fileq.Permanent, match="not a list of orders"):
        run(pipeline.split, tmp_path / "orders.csv")


def test_a_customer_can_not_name_a_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("customer,amount\n../x,1\n")
    with pytest.raises(fileq.Permanent, match="can't be the name of a file"):
        run(pipeline.split, tmp_path / "orders.csv")


def test_a_bill_has_the_total(tmp_path: Path) -> None:
    (tmp_path / "ann.json").write_text("[3, 5]")
    payload = {"customer": "ann", "orders": str(tmp_path / "ann.json")}
    assert run(pipeline.bill, type="bill", payload=payload) == {"total": 8}
    assert json.loads((tmp_path / "bills" / "ann.json").read_text()) == {"customer": "ann", "total": 8}
