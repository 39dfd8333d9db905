#!/bin/sh
# A worker: fetches the steps of an agent with the mode "pull", works on them, and replies. Needs curl and jq.
#   sh worker.sh http://127.0.0.1:8080 video
# The token of the role "work" comes from PROVOST_TOKEN, if there is one. A step is fetched a second time if a reply was
# lost: do the work once for each idempotency_key.
url=$1 agent=$2 worker=sh-$$ answer=$(mktemp)

post() { # path, body: tries until Provost responds. Nothing secret, and nothing long, is an argument of curl.
    until status=$(printf '%s' "$2" | curl -sS -K /dev/fd/3 --max-time 90 -o "$answer" -w '%{http_code}' --data-binary @- 3<<EOF
url = "$url$1"
header = "authorization: Bearer ${PROVOST_TOKEN:-none}"
header = "content-type: application/json"
EOF
    ) && [ "$status" -lt 500 ]; do sleep 1; done
    cat "$answer" && [ "$status" -lt 300 ]
}

work() { # Here is your own work: from the request on standard input to the output of the step, which is JSON.
    jq -c '{done: .body}'
}

while steps=$(post "/v1/agents/$agent/claim" "{\"worker\": \"$worker\", \"wait\": \"30s\"}"); do
    printf '%s' "$steps" | jq -c '.steps[]' | while read -r step; do
        reply=/v1/replies/$(printf '%s' "$step" | jq -r .token)
        output=$(printf '%s' "$step" | jq -c .request | work) && post "$reply" "{\"output\": $output}" >&2 ||
            post "$reply" '{"error": {"message": "the work failed, or its output was refused"}}' >&2
    done
done
printf '%s\n' "$steps" >&2 && exit 1
