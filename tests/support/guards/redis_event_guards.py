"""The guards of the events on Redis: when they may be left out, and what they hold."""

from tests.support.guards.guard import Guard

TEST = "tests/integration/redis/test_events.py::test_"
MISSED = "a program that follows the events misses transitions"

REDIS_EVENT_GUARDS = (
    Guard(
        "A subscriber receives every transition after it subscribed",
        MISSED,
        "if redis.call('PUBSUB', 'NUMSUB', CHANNEL)[2] > 0 or ",
        "if ",
        TEST + "a_subscriber_receives_every_transition_after_it_subscribed",
    ),
    Guard(
        "A subscriber by pattern receives every transition after it subscribed",
        MISSED,
        " or redis.call('PUBSUB', 'NUMPAT') > 0 then",
        " then",
        TEST + "a_subscriber_receives_every_transition_after_it_subscribed",
    ),
    Guard(
        "A subscriber at a replica receives every transition",
        MISSED,
        "return not string.find(redis.call('INFO', 'replication'), 'repl_backlog_active:0', 1, true)",
        "return false",
        TEST + "a_subscriber_at_a_replica_receives_every_transition",
    ),
    Guard(
        "Events are published for a replica that is away for a moment",
        MISSED,
        "'repl_backlog_active:0', 1, true)",
        "'connected_slaves:0', 1, true)",
        TEST + "while_a_replica_is_away_events_are_published_for_it",
    ),
    Guard(
        "A subscriber at any node of a cluster receives every transition",
        MISSED,
        "  if string.find(CHANNEL, '{', 1, true) then return true end\n",
        "",
        TEST + "with_a_hash_tag_events_are_always_published",
    ),
    Guard(
        "A user who may not count subscribers publishes every event",
        "a missing permission stops all jobs",
        "may('PUBSUB', 'NUMSUB', CHANNEL) and may('PUBSUB', 'NUMPAT') and may('INFO', 'replication')",
        "true",
        TEST + "a_user_who_may_not_count_subscribers_publishes_always",
    ),
    Guard(
        "An event is valid JSON for any text in the job",
        "a program that follows the events stops at a path with a quotation mark",
        "string.gsub(text, '[%z\\1-\\31\"\\\\]', function",
        "string.gsub(text, '[%z]', function",
        TEST + "the_events_of_a_job_are_those_of_the_other_brokers",
    ),
)
