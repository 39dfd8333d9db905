#!/bin/sh
# A worker: fetches the steps of an agent with the mode "pull", works on them, and replies. Needs curl and jq.
#   sh worker.sh http://127.0.0.1:8080 video
# The token of the role "work" comes from PROVOST_TOKEN, if there is one. A step is fetched a second time if a reply was
# lost: do the work once for each idempotency_key.
url=$1 agent=$2 worker=sh-$$

post() { # path, body: tries again while Provost cannot be reached. What is secret is not an argument of curl.
    printf 'url = "%s"\nheader = "authorization: Bearer %s"\n' "$url$1" "${PROVOST_TOKEN:-none}" |
        curl -sS -K - --fail-with-body --max-time 90 --retry 3600 --retry-delay 1 --retry-connrefused \
            -H 'content-type: application/json' -d "$2"
}

work() { # Here is your own work: from the request on standard input to the output of the step.
    jq -c '{done: .body}'
}

while answer=$(post "/v1/agents/$agent/claim" "{\"worker\": \"$worker\", \"wait\": \"30s\"}"); do
    printf '%s' "$answer" | jq -c '.steps[]' | while read -r step; do
        token=$(printf '%s' "$step" | jq -r .token)
        if output=$(printf '%s' "$step" | jq -c .request | work); then
            post "/v1/replies/$token" "{\"output\": $output}"
        else
            post "/v1/replies/$token" '{"error": {"message": "the work failed"}}'
        fi
    done
done
