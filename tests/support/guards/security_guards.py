"""The guards against other users and programs: secrets, modes of files, the port of the metrics, links in paths."""

from tests.support.guards.guard import Guard

SERVER, ACCESS = "fileq/observe/bounded_server.py", "fileq/brokers/sqlite/file_access.py"
SECRETS, BENEATH = "fileq/config/secret_variables.py", "fileq/files/beneath.py"
SLOW, MODES, ENVIRONMENT = (
    f"tests/integration/test_{name}.py::test_"
    for name in ("observe_slow_clients", "sqlite_permissions", "secret_environment")
)
OPENING = "tests/unit/test_files_beneath.py::test_"
OUTSIDE = "a link that takes the place of a file is followed to any file of the machine"
STOPPED = "another user locks the file and stops the queue"

SECRET_GUARDS = (
    Guard(
        "No process below the worker has a secret of fileq in its environment",
        "every handler can read the password of the broker",
        "fileq/worker/executors/process/fork_server_client.py",
        " if name not in program.hidden_variables}",
        "}",
        ENVIRONMENT + "no_child_and_no_command_sees_the_password_of_redis",
    ),
    Guard(
        "No command has a secret of fileq in its environment",
        "a command that a thread starts can read the password of the broker",
        "fileq/handlers/command_handler.py",
        "        environment.pop(os.fsencode(variable), None)\n",
        "        pass\n",
        ENVIRONMENT + "no_child_and_no_command_sees_the_password_of_redis",
    ),
    Guard(
        "The configuration that handlers get has no secret",
        "every handler can read the password of the broker",
        SECRETS,
        "            config = replaced_at(config, path, masked)\n",
        "            pass\n",
        ENVIRONMENT + "a_configuration_without_secrets_is_otherwise_the_same",
    ),
    Guard(
        "A URL with credentials in it is a secret",
        "handlers can read the password in FILEQ_REDIS_URL",
        SECRETS,
        "kind.mask(value) != value if kind",
        '(kind.mask("x") == "***" and bool(value)) if kind',
        ENVIRONMENT + "which_variables_are_secret",
    ),
)

PORT_GUARDS = (
    Guard(
        "The port of the metrics has at most 64 connections",
        "clients that send nothing use up the threads and descriptors of the process",
        SERVER,
        "            while len(self._open) >= MAX_CONNECTIONS:\n",
        "            while False:\n",
        SLOW + "a_thousand_slow_clients_take_64_connections_and_probes_are_answered",
    ),
    Guard(
        "A connection is closed at its deadline",
        "slow clients keep their connections for ever",
        SERVER,
        "                if connection.ends_s > now_s:\n",
        "                if True:\n",
        SLOW + "a_client_that_sends_a_byte_now_and_then_is_closed_at_its_deadline",
    ),
    Guard(
        "A client that sends nothing is closed before one that waits for its answer",
        "clients that send nothing keep a probe from its answer",
        SERVER,
        "next((one for one in left if not one[1].has_request), left[0])",
        "left[0]",
        SLOW + "an_answer_on_its_way_is_not_cut_for_clients_that_send_nothing",
    ),
)

MODE_GUARDS = (
    Guard(
        "A new database is readable for its owner only",
        STOPPED,
        ACCESS,
        "NEW_MODE = 0o600\n",
        "NEW_MODE = 0o644\n",
        MODES + "no_other_user_can_open_the_files_of_a_running_program",
    ),
    Guard(
        "The database of an older version is narrowed",
        STOPPED,
        ACCESS,
        "        _narrow(real, database, narrowed(database.st_mode))\n",
        "        pass\n",
        MODES + "the_files_of_an_older_version_are_narrowed_while_another_process_uses_them",
    ),
    Guard(
        "The log and the index of an older version are narrowed",
        STOPPED,
        ACCESS,
        "                _narrow(real + suffix, status, narrowed(status.st_mode) & narrowed(database.st_mode))\n",
        "                pass\n",
        MODES + "the_files_of_an_older_version_are_narrowed_while_another_process_uses_them",
    ),
    Guard(
        "The lock files of an older version are narrowed",
        STOPPED,
        ACCESS,
        "            _narrow(fd, status, narrowed(status.st_mode) & mode)\n",
        "            pass\n",
        MODES + "the_files_of_an_older_version_are_narrowed_while_another_process_uses_them",
    ),
    Guard(
        "No group can write to the database",
        "a user of the group changes the jobs",
        ACCESS,
        "_WIDEST_MODE = 0o640\n",
        "_WIDEST_MODE = 0o660\n",
        MODES + "no_mode_is_wider_than_0640_and_none_becomes_wider",
    ),
    Guard(
        "A lock file is never opened through a link",
        "another user has fileq create or change a file of the operator",
        ACCESS,
        " | os.O_NOFOLLOW | os.O_NONBLOCK\n",
        " | os.O_NONBLOCK\n",
        MODES + "a_link_at_the_name_of_a_side_file_is_refused_and_not_followed",
    ),
    Guard(
        "A link at the name of a side file is refused",
        "another user has fileq write into a file of the operator",
        ACCESS,
        "    if stat.S_ISLNK(status.st_mode):\n",
        "    if False:\n",
        MODES + "a_link_at_the_name_of_a_side_file_is_refused_and_not_followed",
    ),
    Guard(
        "A side file of another user is refused",
        STOPPED,
        ACCESS,
        "    if status.st_uid not in trusted:\n",
        "    if False:\n",
        MODES + "a_side_file_of_another_user_is_refused",
    ),
    Guard(
        "The copy made before a migration is readable for its owner only",
        "other users read the jobs",
        "fileq/brokers/sqlite/database_schema.py",
        "os.O_EXCL | os.O_CLOEXEC, NEW_MODE))",
        "os.O_EXCL | os.O_CLOEXEC))",
        MODES + "the_copy_made_before_a_migration_is_private",
    ),
)

LINK_GUARDS = (
    Guard(
        "Without openat2 no link in the place of a directory is followed",
        OUTSIDE,
        BENEATH,
        "            fd = os.open(name, _REFERENCE | os.O_NOFOLLOW, dir_fd=above)\n",
        "            fd = os.open(name, _REFERENCE, dir_fd=above)\n",
        OPENING + "a_link_that_leads_outside_is_refused",
    ),
    Guard(
        "Without openat2 no link in the place of the file is opened",
        OUTSIDE,
        BENEATH,
        "    if stat.S_ISLNK(os.fstat(fd).st_mode):\n",
        "    if False:\n",
        OPENING + "a_link_that_stays_below_the_root_is_followed",
    ),
    Guard(
        "Without openat2 no path leads out of its root by its names",
        "a job can name any file of the machine",
        BENEATH,
        '    if not {b"", b".", b".."}.isdisjoint(names):\n',
        "    if False:\n",
        OPENING + "a_link_that_leads_outside_is_refused",
    ),
)

SECURITY_GUARDS = (*SECRET_GUARDS, *PORT_GUARDS, *MODE_GUARDS, *LINK_GUARDS)
