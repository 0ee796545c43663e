"""mypy knows what a task takes and returns: a typed program is checked as its author would check it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """\
from msgspec import Struct

import fileq


class Thumb(Struct):
    path: str
    width: int = 100


@fileq.task("thumbnail", timeout="30s", max_retries=5, give_up_on=[ValueError], retry_if=lambda error: True)
def thumbnail(job: fileq.JobView[Thumb], context: fileq.Context) -> str:
    return job.payload.path


@fileq.task()
async def total(job: fileq.JobView[list[int]], context: fileq.Context) -> int:
    return sum(job.payload)


@fileq.task("loose")
def loose(job: fileq.JobView, context: fileq.Context) -> dict[str, int]:
    return {"a": int(job.payload["a"])}


@fileq.task("tick")
def tick(job: fileq.JobView[None], context: fileq.Context) -> None: ...


def use(client: fileq.Client) -> None:
    handle: fileq.Handle[str] = thumbnail.enqueue(Thumb("/in/a.png"), delay="5m", tags={"a": "b"})
    text: str = handle.wait(5)
    number: int = client.enqueue(total, [1, 2]).wait()
    anything = client.enqueue("total", [1, 2]).wait()
    named: fileq.Task[Thumb, str] = thumbnail
    tick.enqueue(priority=None, delay=None, id=None, unique_key=None)
    client.enqueue_many([thumbnail.call(Thumb("x")), fileq.Call("total", [1]), fileq.Call(tick)])
    try:
        loose.enqueue({"a": 1}).wait()
    except fileq.JobFailed as error:
        print(error.attempts + number, error.error + text, anything, named)
    except (fileq.JobCancelled, fileq.ResultExpired, TimeoutError):
        pass
    with client.batch("night", then=tick, catch="told", finally_=thumbnail.call(Thumb("x")), priority="low") as batch:
        added: fileq.Handle[int] = batch.add(total, [1])
        batch.add_many([thumbnail.call(Thumb("x"))])
        client.enqueue(total, [added.wait()], batch=batch)
    status: fileq.BatchDocument = client.find_batch(batch.id).wait(5)
    print(status.completed + 1, client.batch(parent=batch).retry().count)
    client.schedule("nightly", "@daily", thumbnail, Thumb("x"))
    client.schedule("weekly", "@weekly", loose, {"a": 1})
    for job in client.jobs(status="dead", since="2h"):
        print(job.is_finished, job.id, "late" in (job.error or ""))
    print(len(list(client.jobs(type=thumbnail, batch=batch))))


FACTS = fileq.BatchFacts("b-1", "then", 2, 2, 0, 0, 0)


@fileq.task("grows")
def grows(job: fileq.JobView[None], context: fileq.Context) -> None:
    if context.batch is not None:
        thumbnail.enqueue(Thumb(context.batch.add(total, [1])), batch=context.batch)
    context.enqueue(thumbnail, Thumb(context.enqueue("total", [1])), delay="5m")
    context.enqueue(tick)


async def use_async(client: fileq.AsyncClient) -> int:
    async with client.batch(allow_failures=True) as batch:
        number: int = await (await batch.add(total, [1])).wait()
    assert (await batch.wait(5)).is_success, number
    handle = await client.enqueue(total, [1])
    async with client.events("job:*") as events:
        async for event in events:
            print(event.job_id)
    print((await anext(await client.events())).event)
    return await handle.wait()
"""
WRONG = """\

def misuse(client: fileq.Client) -> None:
    thumbnail.enqueue(3)
    thumbnail.enqueue(Thumb("x"), dealy=3)
    thumbnail.enqueue(Thumb("x")).wait() + 1
    client.enqueue(total, ["x"])
    thumbnail.call("x")
    client.jobs(status="odd")
    client.batch().add(total, ["x"])
    client.batch(than=tick)
    client.schedule("x", "@daily", tick, 5)


def misuse_in_a_handler(context: fileq.Context) -> None:
    context.enqueue(total, "x")
    context.batch and context.batch.add(thumbnail, 3)
"""


def test_a_program_with_tasks_passes_strict_mypy_and_its_mistakes_do_not(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + WRONG)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-pretty", "program.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line]
    first = PROGRAM.count("\n") + 2
    assert [int(line.split(":")[1]) - first for line in errors] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14], (
        checked.stdout + checked.stderr
    )
    assert 'expected "Thumb | UnsetType"' in errors[0]
