"""The guards of webhooks."""

from tests.support.guards.guard import Guard

PURE, KEPT, FOLLOWED = (f"tests/unit/webhooks/test_{name}.py::test_" for name in ("rules", "webhooks", "follow_ups"))
SENT = "tests/integration/webhooks/test_sender.py::test_"
LISTED = "tests/integration/cli/test_webhooks.py::test_"
INSIDE = "a URL that others choose reaches services inside the network"
SLOW = "a dead receiver slows other jobs"
NOT_TOLD = "an event happens and no receiver is notified"

WEBHOOK_GUARDS = (
    Guard(
        "An address is public only if no block holds it",
        INSIDE,
        "    return is_global and not any(address in network for network in _BLOCKED)\n",
        "    return is_global\n",
        PURE + "an_address_that_is_not_public_is_blocked",
    ),
    Guard(
        "Of IPv6 only the global space is public, without the forms that carry an IPv4 address",
        INSIDE,
        "    is_global = isinstance(address, IPv4Address) or address in _GLOBAL_V6\n",
        "    is_global = True\n",
        PURE + "an_address_that_is_not_public_is_blocked",
    ),
    Guard(
        "Every address of a name is checked",
        INSIDE,
        "        for address in found:\n            # One",
        "        for address in found[:1]:\n            # One",
        SENT + "one_wrong_address_is_enough_to_refuse",
    ),
    Guard(
        "The connection goes to the address that was checked",
        "a name that resolves differently the second time gets around the check",
        "connect((address, self._target.port)",
        "connect((self._target.host, self._target.port)",
        SENT + "a_name_is_resolved_once_and_the_checked_address_is_called",
    ),
    Guard(
        "TLS checks the name of the receiver",
        "another server can take the messages",
        "server_hostname=target.host, do_handshake",
        'server_hostname="localhost", do_handshake',
        SENT + "tls_checks_the_name_although_an_address_is_called",
    ),
    Guard(
        "The URL is checked at every delivery",
        "a definition from before a change of webhooks.allow_* is still used",
        "if problem := url_problem(url, allow_http=self.settings.allow_http",
        'if problem := "" and url_problem(url, allow_http=self.settings.allow_http',
        SENT + "the_url_is_checked_at_every_delivery",
    ),
    Guard(
        "One time limit holds for the whole answer",
        "a receiver that sends a byte now and then holds a thread forever",
        "(left_s := until_s - time.monotonic()) > 0:\n",
        "(left_s := SLICE_S) > 0:\n",
        SENT + "one_time_limit_holds_for_everything",
    ),
    Guard(
        "At most 64 kB of an answer are read",
        "a receiver fills the memory of a worker",
        "                left -= len(piece)\n",
        "",
        SENT + "at_most_64_kb_of_an_answer_are_read",
    ),
    Guard(
        "A settlement brings the deliveries about it",
        NOT_TOLD,
        "        found = subscriptions.settled(settlement, self._now_ms())\n",
        "        found: list[FollowUp] = []\n",
        FOLLOWED + "the_end_of_an_attempt_is_told",
    ),
    Guard(
        "The end of a superseded job is reported",
        NOT_TOLD,
        "            self._settle(slot, decision, claim.version, route)\n",
        "            slot.settle(decision, route)\n",
        FOLLOWED + "a_superseded_job_is_told_as_such",
    ),
    Guard(
        "The id of a delivery names the attempt",
        "a job that dies again after `dlq retry` is not reported",
        '            id = follow_up_id(job.id, "webhook", webhook.name, event, attempt)\n',
        '            id = follow_up_id(job.id, "webhook", webhook.name, event)\n',
        FOLLOWED + "each_attempt_and_each_webhook_has_its_own_delivery_and_a_repeat_has_none",
    ),
    Guard(
        "No webhook reports fileq's own jobs",
        "a delivery that fails creates deliveries without end",
        "        if is_own_type(job.type):\n",
        "        if job.type is None and False:\n",
        FOLLOWED + "jobs_of_fileq_itself_are_not_told",
    ),
    Guard(
        "A command that cancels many jobs leaves the deliveries about it",
        NOT_TOLD,
        "    return replace(wanted, leaves_deliveries=action is JobAction.CANCEL and not has_deliveries, limit=None)\n",
        "    return replace(wanted, limit=None)\n",
        LISTED + "a_cancelled_job_has_its_delivery",
    ),
    Guard(
        "Deliveries take no slot of other jobs",
        SLOW,
        "        self._held_max = self._slots.count + self._depth + len(self._deliveries)\n",
        "        self._held_max = self._slots.count + self._depth\n",
        FOLLOWED + "deliveries_take_no_slot_from_other_jobs",
    ),
    Guard(
        "Deliveries take no room of other tasks",
        SLOW,
        "            self._deliveries.add(claim.key)\n            self._room += 1\n",
        "            self._deliveries.add(claim.key)\n",
        FOLLOWED + "deliveries_take_no_slot_from_other_jobs",
    ),
    Guard(
        "A worker sends at most 4 deliveries at a time",
        "a burst of events opens any number of connections",
        "            return (DELIVERIES_RUN, 0.0) if len(self._deliveries) >= DELIVERIES_MAX else None\n",
        "            return None\n",
        FOLLOWED + "the_end_of_a_delivery_makes_the_next_one_due",
    ),
    Guard(
        "No circuit breaker stops deliveries",
        "no receiver is notified that the jobs of a route fail",
        "        if self.is_closed or self.has_deliveries():\n",
        "        if self.is_closed:\n",
        FOLLOWED + "no_breaker_stops_deliveries",
    ),
    Guard(
        "A receiver that answers 410 gets no more messages",
        "a receiver that asked for silence is contacted for days",
        "        if known.state.disabled:\n",
        "        if False:\n",
        KEPT + "410_disables_at_once",
    ),
    Guard(
        "A webhook is disabled only after a day of failures",
        "a short outage of a receiver disables its webhook",
        "        return state.failures >= FAILURES_MAX and self._now_ms() - state.since_ms >= FAILING_MS\n",
        "        return state.failures >= FAILURES_MAX\n",
        KEPT + "50_failures_in_a_row_over_a_day_disable",
    ),
    Guard(
        "Both secrets sign after a rotation",
        "messages are refused until the receiver has the new secret",
        "            return replace(stored, secrets=(Secret(secret), Secret(stored.secrets[0].secret, until_ms)))\n",
        "            return replace(stored, secrets=(Secret(secret),))\n",
        KEPT + "two_secrets_sign_for_a_day_after_a_rotation",
    ),
    Guard(
        "Child processes do not get a variable with the secrets of webhooks",
        "a handler can read them",
        " is not None else SECRET_PREFIX in value\n",
        " is not None else False\n",
        PURE + "handlers_do_not_get_a_variable_with_a_secret_of_a_webhook",
    ),
    Guard(
        "Child processes do not get the secrets of webhooks",
        "a handler can read them",
        '    endpoints = tuple(replace(one, secret=HIDDEN if one.secret else "")',
        "    endpoints = tuple(one",
        PURE + "an_endpoint_is_read_and_its_secrets_are_never_shown",
    ),
)
