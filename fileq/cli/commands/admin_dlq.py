"""`fileq admin dlq list|retry|delete` and `fileq admin purge-dlq`: dead jobs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fileq.cli.arguments import add_json, whole
from fileq.cli.command import Command, Context
from fileq.cli.pages import page_of_stdout, print_lines
from fileq.commands.admin.schema import DLQ_ANSWER_FIELDS, DLQ_LIST_FIELDS, PURGE_FIELDS
from fileq.core.errors import ConfigError

if TYPE_CHECKING:
    from fileq.commands.admin.dlq import Answer


def _add_conditions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--match", metavar="GLOB", help="only of files like this: '*.pdf' by name, with a slash by the whole path"
    )
    parser.add_argument("--error", metavar="TEXT", help="only those whose error contains this, in any case")


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    _add_conditions(parser)
    parser.add_argument("--limit", type=whole(1), default=50, metavar="N", help="at most so many (default: 50)")
    add_json(parser)


def _list(context: Context) -> int:
    from fileq.commands.admin.dlq import list_dead

    options = context.options
    dead = list_dead(context.broker(), options.limit, match=options.match, error=options.error)
    if options.json:
        context.print_json(dead)
        return 0
    from fileq.commands.admin.dlq_text import render_dead
    from fileq.commands.admin.looking_text import now_ms

    print_lines(render_dead(dead, page_of_stdout(), now_ms()))
    return 0


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="a dead job's id")
    parser.add_argument("--all", action="store_true", help="every dead job; or those that meet the conditions")
    _add_conditions(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_json(parser)


def _retry(context: Context) -> int:
    from fileq.commands.admin.dlq import retry, retry_all

    options = context.options
    conditions = options.match is not None or options.error is not None
    if options.ids and (options.all or conditions):
        raise ConfigError("give ids, or --all with --match and --error; not both; see 'fileq admin dlq retry --help'")
    if not options.ids and not options.all:
        named = "--all as well" if conditions else "ids, or --all"
        raise ConfigError(f"which dead jobs? give {named}; see 'fileq admin dlq retry --help'")
    queue = context.loaded().config.worker.priorities[-1]
    broker = context.broker()
    if options.all:
        answer = retry_all(broker, queue=queue, match=options.match, error=options.error, is_dry_run=options.dry_run)
    else:
        answer = retry(broker, options.ids, queue=queue, is_dry_run=options.dry_run)
    return _answered(context, answer, "put back", has_failed=answer.has_failed and not options.all)


def _answered(context: Context, answer: Answer, done: str, *, has_failed: bool) -> int:
    if context.options.json:
        context.print_json(answer)
    else:
        from fileq.commands.admin.dlq_text import render_answer

        print_lines(render_answer(answer, done, page_of_stdout()))
    return 1 if has_failed else 0


def _ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="a dead job's id, or raw-<sha1> for bytes that are no job")
    add_json(parser)


def _delete(context: Context) -> int:
    from fileq.commands.admin.dlq import delete

    answer = delete(context.broker(), context.options.ids)
    return _answered(context, answer, "deleted", has_failed=answer.has_failed)


def _purge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do it; without this it only counts (--force is the same)")
    add_json(parser)


def _purge(context: Context) -> int:
    from fileq.commands.admin.dlq import count_dead, purge
    from fileq.commands.admin.text import plural

    broker = context.broker()
    if not context.options.yes:
        count = count_dead(broker)
        if context.options.json:
            context.print_json({"deleted": 0, "dead": count})
        else:
            print(f"{plural(count, 'dead job')}; nothing was deleted")
        raise ConfigError("purge-dlq deletes dead jobs for good; say --yes to do it")
    gone = purge(broker)
    if context.options.json:
        context.print_json({"deleted": gone, "dead": gone})
    else:
        print(f"{plural(gone, 'dead job')} deleted")
    return 0


COMMANDS = (
    Command(
        words=("admin", "dlq", "list"),
        summary="dead jobs with attempts, error and times",
        description="""\
Lists the dead-letter queue, newest first: each job with the number of its attempts, when it died, its queue, its file
and the first line of its error. Bytes that were no job are listed under raw-<sha1>. `fileq show ID` tells the rest.""",
        examples=(
            ("fileq dlq list", "the newest fifty"),
            ("fileq dlq list --match '*.pdf' --error timeout", "some of them"),
        ),
        arguments=_list_arguments,
        run=_list,
        json_fields=DLQ_LIST_FIELDS,
    ),
    Command(
        words=("admin", "dlq", "retry"),
        summary="put dead jobs back into their queues",
        description="""\
Puts dead jobs back where they came from, as new: the same id, no retries and no recoveries counted, error gone.
Interrupted, it can be repeated: nothing is lost and nothing runs twice. Bytes that are no job are refused, since a
retry would only bury them again. Exit code 1 when an id that was named could not be put back.""",
        examples=(
            ("fileq dlq retry 2f6c1d0e-5b7a-4c3f-9e21-8d4b6a7c9f10", "one job; more ids may follow"),
            ("fileq dlq retry --all --error 'connection refused' --dry-run", "what would be put back?"),
            ("fileq dlq retry --all --match '/srv/inbox/2026/**'", "all of a directory"),
        ),
        arguments=_retry_arguments,
        run=_retry,
        json_fields=DLQ_ANSWER_FIELDS,
    ),
    Command(
        words=("admin", "dlq", "delete"),
        summary="delete dead jobs for good",
        description="""\
Deletes dead jobs with their records. Their files stay where they are. Exit code 1 when one of the ids is not that of a
dead job.""",
        examples=(("fileq dlq delete raw-da39a3ee5e6b4b0d3255bfef95601890afd80709", "bytes that were no job"),),
        arguments=_ids,
        run=_delete,
        json_fields=DLQ_ANSWER_FIELDS,
    ),
    Command(
        words=("admin", "purge-dlq"),
        summary="empty the dead-letter queue",
        description="""\
Deletes every dead job with its record and says how many. Without --yes it prints how many there are and refuses, with
exit code 2.""",
        examples=(("fileq purge-dlq", "how many would go?"), ("fileq purge-dlq --yes", "delete them all")),
        arguments=_purge_arguments,
        run=_purge,
        json_fields=PURGE_FIELDS,
    ),
)
