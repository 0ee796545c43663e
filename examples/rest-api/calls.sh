# The usual calls of the REST API with curl: submit, get, list, cancel, retry, purge, stats, and a wrong key.
# Needs URL, such as http://127.0.0.1:8080, and API_KEY. Prints each call, the status and the answer.
set -eu

call() {  # METHOD PATH [JSON]
    printf '> %s %s %s\n' "$1" "$2" "${3-}"
    # The key is in a file, because every user can see arguments.
    printf 'X-API-Key: %s\n' "$API_KEY" > "$headers"
    answer=$(curl --silent --show-error --write-out '\n%{http_code}' --request "$1" --header "@$headers" \
        --header 'Content-Type: application/json' ${3+--data "$3"} "$URL/api/v1$2")
    body=${answer%
*}
    printf '%s %s\n' "${answer##*
}" "$body"
}

id() {
    printf '%s' "$body" | sed 's/.*"id":"\([^"]*\)".*/\1/'
}

headers=$(mktemp)
trap 'rm -f "$headers"' EXIT

# Submit a job, wait for it, get it.
call POST /jobs '{"type": "report", "payload": {"pages": 3}, "priority": "high", "max_retries": 3, "timeout": 30}'
report=$(id)
call GET "/jobs/$report/wait?timeout=30"
call GET "/jobs/$report"

# Submit a job for later, and cancel it.
call POST /jobs '{"type": "report", "payload": {"pages": 1}, "delay": 3600}'
call DELETE "/jobs/$(id)"

# Submit a job that fails, retry it, list the dead jobs, and delete them.
call POST /jobs '{"type": "broken"}'
broken=$(id)
call GET "/jobs/$broken/wait?timeout=30"
call POST "/jobs/$broken/retry"
call GET "/jobs/$broken/wait?timeout=30"
call GET '/jobs?status=dead&type=broken&page=1&limit=20'
call DELETE /dead

call GET /stats

# A wrong key.
API_KEY=wrong call GET /stats
