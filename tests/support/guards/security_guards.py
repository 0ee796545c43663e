"""The guards against other users and programs: secrets, modes of files, ports, links in paths, keys, senders."""

from tests.support.guards.guard import Guard, Promise

SLOW, HOSTILE, MODES, ENVIRONMENT = (
    f"tests/integration/{name}.py::test_"
    for name in (
        "observe/test_slow_clients",
        "server/test_hostile_clients",
        "sqlite/test_permissions",
        "security/test_secret_environment",
    )
)
OPENING = "tests/unit/files/test_beneath.py::test_"
LINKS = "tests/integration/server/test_security.py::test_"
OUTSIDE = "a link that takes the place of a file is followed to any file of the machine"
STOPPED = "another user locks the file and stops the queue"

SECRET_GUARDS = (
    Guard(
        "No process below the worker has a secret of fileq in its environment",
        "every handler can read the password of the broker",
        " if name not in program.hidden_variables}",
        "}",
        ENVIRONMENT + "no_child_and_no_command_sees_the_password_of_redis",
    ),
    Guard(
        "No command has a secret of fileq in its environment",
        "a command that a thread starts can read the password of the broker",
        "        environment.pop(os.fsencode(variable), None)\n",
        "        pass\n",
        ENVIRONMENT + "no_child_and_no_command_sees_the_password_of_redis",
    ),
    Guard(
        "The configuration that handlers get has no secret",
        "every handler can read the password of the broker",
        "            config = replaced_at(config, path, masked)\n",
        "            pass\n",
        ENVIRONMENT + "a_configuration_without_secrets_is_otherwise_the_same",
    ),
    Guard(
        "A URL with credentials in it is a secret",
        "handlers can read the password in FILEQ_REDIS_URL",
        "kind.mask(value) != value if kind",
        '(kind.mask("x") == "***" and bool(value)) if kind',
        ENVIRONMENT + "which_variables_are_secret",
    ),
)

PORT_GUARDS = (
    Guard(
        "The port of the metrics has a bounded number of connections",
        "clients that send nothing use up the descriptors of the process",
        "            while len(self._clients) >= MAX_CONNECTIONS:\n",
        "            while False:\n",
        SLOW + "a_thousand_slow_clients_take_few_connections_and_probes_are_answered",
    ),
    Guard(
        "A connection is closed at its deadline",
        "slow clients keep their connections forever",
        "            if client.ends_s > now_s:\n",
        "            if True:\n",
        SLOW + "a_client_that_sends_a_byte_now_and_then_is_closed_at_its_deadline",
    ),
    Guard(
        "A client that sends nothing is closed before one that waits for its answer",
        "clients that send nothing keep a probe from its answer",
        "next((client for client in theirs if client.unsent is None), theirs[0])",
        "theirs[0]",
        SLOW + "an_answer_on_its_way_is_not_cut_for_clients_that_send_nothing",
    ),
    Guard(
        "Few frames of a WebSocket are taken apart in a second",
        "any key with the scope read stops the REST server",
        "            if self._left == 0:\n",
        "            if False:\n",
        HOSTILE + "a_client_that_floods_a_websocket_is_disconnected",
    ),
)

MODE_GUARDS = (
    Guard(
        "A new database is readable for its owner only",
        STOPPED,
        "NEW_MODE = 0o600\n",
        "NEW_MODE = 0o644\n",
        MODES + "no_other_user_can_open_the_files_of_a_running_program",
    ),
    Guard(
        "A database that others can open is narrowed",
        STOPPED,
        "        _narrow(real, database, narrowed(database.st_mode))\n",
        "        pass\n",
        MODES + "files_that_others_can_open_are_narrowed_while_another_process_uses_them",
    ),
    Guard(
        "A log and an index that others can open are narrowed",
        STOPPED,
        "                _narrow(real + suffix, status, narrowed(status.st_mode) & narrowed(database.st_mode))\n",
        "                pass\n",
        MODES + "files_that_others_can_open_are_narrowed_while_another_process_uses_them",
    ),
    Guard(
        "Lock files that others can open are narrowed",
        STOPPED,
        "            _narrow(fd, status, narrowed(status.st_mode) & mode)\n",
        "            pass\n",
        MODES + "files_that_others_can_open_are_narrowed_while_another_process_uses_them",
    ),
    Guard(
        "No group can write to the database",
        "a user of the group changes the jobs",
        "_WIDEST_MODE = 0o640\n",
        "_WIDEST_MODE = 0o660\n",
        MODES + "no_mode_is_wider_than_0640_and_none_becomes_wider",
    ),
    Guard(
        "A lock file is never opened through a link",
        "another user has fileq create or change a file of the operator",
        " | os.O_NOFOLLOW | os.O_NONBLOCK\n",
        " | os.O_NONBLOCK\n",
        MODES + "a_link_at_the_name_of_a_side_file_is_refused_and_not_followed",
    ),
    Guard(
        "A link at the name of a side file is refused",
        "another user has fileq write into a file of the operator",
        "    if stat.S_ISLNK(status.st_mode):\n        raise _refused(",
        "    if False:\n        raise _refused(",
        MODES + "a_link_at_the_name_of_a_side_file_is_refused_and_not_followed",
    ),
    Guard(
        "A side file of another user is refused",
        STOPPED,
        "    if status.st_uid not in trusted:\n",
        "    if False:\n",
        MODES + "a_side_file_of_another_user_is_refused",
    ),
)

LINK_GUARDS = (
    Guard(
        "No link in the place of a directory is followed",
        OUTSIDE,
        "            fd = os.open(name, _REFERENCE | os.O_NOFOLLOW, dir_fd=above)\n",
        "            fd = os.open(name, _REFERENCE, dir_fd=above)\n",
        OPENING + "a_link_that_leads_outside_is_refused",
    ),
    Guard(
        "No link in the place of the file is opened",
        OUTSIDE,
        "    if stat.S_ISLNK(os.fstat(fd).st_mode):\n",
        "    if False:\n",
        OPENING + "a_link_that_stays_below_the_root_is_followed",
    ),
    Guard(
        "No path leads out of its root by its names",
        "a job can name any file of the machine",
        '    if not {b"", b".", b".."}.isdisjoint(names):\n',
        "    if False:\n",
        OPENING + "a_link_that_leads_outside_is_refused",
    ),
)

NOT_KEPT_OUT = Promise(
    "A record that another program caused does not block fileq's own jobs",
    "a job with the id of a slot or a callback stops it forever",
    "TestOwnJobs::test_a_planted_id_keeps_no_other_job_of_fileqs_own_out",
)
NOT_OPENED = Promise(
    "One of fileq's own jobs does not open a batch that is closed to new jobs",
    "a pushed job that names a delivery adds to it",
    "TestOwnJobs::test_no_batch_is_opened_by_a_follow_up_of_fileqs_own",
)
OWN = "tests/integration/security/test_own_jobs.py::test_"
READS = "any key and any program that may push a job reads files and sends signed messages"
RESERVED = Promise(
    "No broker takes a job that only fileq itself may create",
    READS,
    "TestOwnJobs::test_what_fileq_reserves_is_refused_and_nothing_changes",
)
UNTOUCHED = Promise(
    "Pushed bytes never affect one of fileq's own jobs, or a batch member, with the same id",
    "one pushed job stops a schedule, or ends the batch of another",
    "TestOwnJobs::test_pushed_bytes_never_touch_the_job_that_has_their_id",
)
NOT_AGAIN = Promise(
    "An exact copy of one of fileq's own jobs, or of a batch member, does not run after it",
    "the bytes of a completed job of one of fileq's own types run it again",
    "TestOwnJobs::test_an_exact_copy_of_a_job_that_does_not_wait_is_not_run_again",
)
SETTLED_APART = Promise(
    "A job whose id was taken over while it ran leaves the record alone",
    "the job of a slot is taken for a foreign one and never runs",
    "TestOwnJobs::test_a_planted_job_that_runs_leaves_the_job_alone_that_took_its_id",
)
DEAD_APART = Promise(
    "Dead bytes under the id of another job change that job neither by retry nor by delete",
    "an operator who clears up runs a pushed job as the job of a schedule",
    "TestOwnJobs::test_no_operator_changes_a_job_by_the_bytes_that_took_its_id",
)

OWN_JOB_GUARDS = (
    UNTOUCHED.on(
        "redis",
        "  if not (was[4] or was[5]) then return false end\n",
        "  if true then return false end\n",
    ),
    UNTOUCHED.on(
        "rules",
        "is_foreign = work.is_foreign(queued.raw, queued.job, State.PENDING)\n",
        "is_foreign = False\n",
    ),
    NOT_AGAIN.on(
        "redis",
        "  return (was[1] or '0') == '0' or is_foreign(",
        "  return is_foreign(",
    ),
    NOT_AGAIN.on("rules", "is_there = bool(record.queued) if", "is_there = True if"),
    SETTLED_APART.on(
        "redis",
        "  if is_foreign(job.record, job.raw, job.was[8], job.was[9]) then make_foreign(job) end\n",
        "",
    ),
    SETTLED_APART.on(
        "rules",
        "    if record is not None and not record.is_about(s.claim.raw):\n",
        "    if False:\n",
    ),
    DEAD_APART.on("redis", "  return (was[1] or was[2]) and (", "  return false and ("),
    DEAD_APART.on(
        "rules",
        "(job.id != revival.id or work.is_foreign(revival.raw, job, State.DEAD))",
        "(job.id != revival.id)",
    ),
    NOT_KEPT_OUT.on(
        "redis",
        "  return not was or was.err ~= nil or was[1] ~= false\n",
        "  return true\n",
    ),
    NOT_KEPT_OUT.on("rules", " and (not entry.is_own or bool(record.facts.origin))\n", "\n"),
    NOT_OPENED.on(
        "redis",
        "joining.join(batch, id, is_delivered and batch or follows)\n",
        "joining.join(batch, id, origin ~= '' and batch or follows)\n",
    ),
    NOT_OPENED.on(
        "rules",
        "    is_open_to_it = entry.fills_delivery or",
        "    is_open_to_it = entry.is_own or",
    ),
    RESERVED.on(
        "memory",
        "            check_job(entry.job)\n",
        "            pass\n",
    ),
    Guard(
        "A client is refused a job that only fileq itself may create, and is told the reason",
        "its mistake ends in an error of the broker",
        "    job = options.applied(job, round(now.timestamp() * 1000))\n    check_job(",
        "    job = options.applied(job, round(now.timestamp() * 1000))\n    (lambda *_, **__: None)(",
        OWN + "an_enqueue_key_gets_no_job_of_a_type_of_fileqs_own",
    ),
    Guard(
        "A handler is refused a follow-up that only fileq itself may create",
        "the settlements of all slots of a worker fail, again and again",
        "        check_type(request.type)\n",
        "",
        OWN + "a_handler_is_refused_while_it_asks_and_its_worker_goes_on",
    ),
    Guard(
        "A job of one of fileq's own types runs only if its record has its origin",
        READS,
        " and record is not None and record.origin == origin_of(job)\n",
        " and record is not None\n",
        OWN + "a_pushed_job_of_a_type_of_fileqs_own_is_dead_before_it_acts",
    ),
    Guard(
        "The origin of a job of one of fileq's own types covers its payload",
        "a copy of such a job with another payload runs",
        '.encode(errors="surrogatepass") + payload).hexdigest()\n',
        '.encode(errors="surrogatepass")).hexdigest()\n',
        "tests/unit/commands/test_built_in_jobs.py::test_the_origin_of_a_built_in_job_is_about_its_payload",
    ),
    Guard(
        "One of fileq's own jobs stops between two steps when it is cancelled or times out",
        "a long file holds a thread and the disk for hours",
        '    if context.cancelled.is_set():\n        raise FileqError("stopped',
        '    if False:\n        raise FileqError("stopped',
        "tests/unit/commands/test_built_in_jobs.py::test_a_check_of_a_long_file_stops_within_one_chunk",
    ),
)

ROUTES, KEYS = (f"tests/integration/server/test_{name}.py::test_" for name in ("routes", "keys"))
WITHOUT_SCOPE = ROUTES + "every_route_refuses_callers_without_a_key_and_callers_without_its_scope"
OTHER_SITE = ROUTES + "every_unsafe_route_refuses_other_sites_in_all_three_situations_and_accepts_its_own"

ACCESS_GUARDS = (
    Guard(
        "The retries of batches of one key leave threads to others",
        "a key with the scope operate keeps everyone else from the API for minutes",
        'members to their queues", is_scan=True)\ndef retry_one_batch(',
        'members to their queues", timeout_s=30.0)\ndef retry_one_batch(',
        "tests/integration/server/test_definitions.py"
        "::test_the_retries_and_cancellations_of_large_batches_hold_up_no_other_request",
    ),
    Guard(
        "A caller without one of the scopes of an endpoint is refused",
        "a read key changes jobs and creates keys",
        "        if wanted and self.scopes.isdisjoint(wanted):\n",
        "        if False:\n",
        WITHOUT_SCOPE,
    ),
    Guard(
        "An endpoint that says nothing about limits refuses restricted keys",
        "a key for one directory reads the jobs, files and events of all",
        "        if self.is_limited and not serves_limited:\n",
        "        if False:\n",
        KEYS + "a_restricted_key_sees_and_changes_only_what_its_restriction_names",
    ),
    Guard(
        "A request that a browser sends for another site changes nothing",
        "a page that an operator visits deletes jobs",
        "            if caller.is_browser and request.method not in SAFE:\n",
        "            if False:\n",
        OTHER_SITE,
    ),
    Guard(
        "A request for a foreign host is refused",
        "a page that points its own name at the server reads all responses",
        "        if not self._is_own_host(sender.host):\n            detail = f",
        "        if False:\n            detail = f",
        "tests/integration/server/test_security.py::test_foreign_hosts_other_origins_and_too_many_requests_are_refused",
    ),
    Guard(
        "A short key in server.api_key_file lets no caller in",
        "the key of an admin can be guessed",
        '        return key if is_outside_key(key) else ""\n',
        "        return key\n",
        "tests/integration/server/test_security.py::"
        "test_a_new_key_in_the_file_counts_at_once_and_one_that_can_be_guessed_never",
    ),
    Guard(
        "A webhook is sent to public addresses only",
        "the creator of a webhook reaches services in the worker's own network",
        '    return "" if is_public(parsed) else f"{address} is not a public address"\n',
        '    return ""\n',
        "tests/unit/webhooks/test_rules.py::test_an_address_that_is_not_public_is_blocked",
    ),
)

LOGIN_GUARDS = (
    Guard(
        "A one-time link works only for the first who opens it",
        "a copy of the link, in a history or a log of a proxy, logs in as an administrator",
        " or not LOGIN_LINKS.remove(self._catalog, name):\n",
        ":\n",
        LINKS + "of_many_who_open_a_new_link_at_once_one_gets_it_and_none_after_it_expired",
    ),
    Guard(
        "A one-time link that was not opened expires",
        "a forgotten link logs in as an administrator",
        "link is None or link.expires_ms <= self._now_ms() or",
        "link is None or",
        LINKS + "of_many_who_open_a_new_link_at_once_one_gets_it_and_none_after_it_expired",
    ),
)

SENDER_GUARDS = (
    Guard(
        "Only a regular file of a delivery is read",
        "a pipe or a device holds a slot forever",
        "    if not stat.S_ISREG(os.fstat(fd).st_mode):\n",
        "    if False:\n",
        OPENING + "only_a_regular_file_is_read_and_none_is_waited_for",
    ),
    Guard(
        "The marker of a delivery is written under a name that no sender can guess",
        "a sender has fileq replace any file of its user",
        '    private = private_name(f"marker{secrets.token_hex(12)}")\n    try',
        '    private = private_name("marker")\n    try',
        "tests/integration/security/test_hostile_senders.py::test_a_link_in_a_delivery_does_not_choose_what_the_marker_replaces",
    ),
    Guard(
        "A configuration that others can have written is read only if it is named",
        "a command typed in an inbox executes the code of a sender",
        "if fault := untrusted_file(os.fspath(cwd / DEFAULT_FILE)):",
        "if fault := '':",
        "tests/unit/config/test_sources.py::test_a_file_that_others_can_have_written_is_read_only_if_it_is_named",
    ),
    Guard(
        "Handlers are imported from a directory that others can write to only if it is named",
        "a command typed in an inbox executes the code of a sender",
        "if self._is_default and (fault := untrusted_directory(self._app_dir)):",
        "if self._is_default and (fault := ''):",
        "tests/integration/handlers/test_loading.py::"
        "test_nothing_is_imported_from_a_working_directory_that_others_can_write_to",
    ),
    Guard(
        "An entry of a manifest has a bounded length",
        "one manifest of a sender fills the memory of the producer",
        "    if len(memoryview(text)) > ENTRY_MAX:\n",
        "    if False:\n",
        "tests/unit/files/test_manifest.py::test_what_is_unknown_in_a_list_makes_no_objects",
    ),
    Guard(
        "The reading of checksums ends with the deadline of a delivery",
        "a sender's sparse file keeps a delivery open forever",
        '            reader.give_up("could not be read in time")\n',
        "            return\n",
        "tests/unit/producer/test_deliveries.py::"
        "test_a_file_that_cannot_be_read_before_the_deadline_keeps_no_delivery_open",
    ),
)

SECURITY_GUARDS = (
    *SECRET_GUARDS,
    *PORT_GUARDS,
    *MODE_GUARDS,
    *LINK_GUARDS,
    *OWN_JOB_GUARDS,
    *ACCESS_GUARDS,
    *LOGIN_GUARDS,
    *SENDER_GUARDS,
)
