#!/bin/sh
# Runs a server for tests, and ends it and removes its folder once no test has needed it for a minute. Ends only what
# it started.
#   watchdog.sh <folder of the server> <lock file> <file touched by tests> <signal that ends it> <program> [argument …]
folder=$1 lock=$2 alive=$3 signal=$4
shift 4
"$@" >"$folder/log" 2>&1 &
server=$!
stale=0
while kill -0 "$server" 2>/dev/null; do
    sleep 2
    # Under the lock, so that no test finds it running while it is being ended.
    (
        flock 9
        age=$(($(date +%s) - $(stat -c %Y "$alive" 2>/dev/null || echo 0)))
        [ "$age" -le 60 ] && exit 0
        # After the clock was set, or the machine slept, the file looks old although tests run. They touch it
        # every ten seconds: so only what stays old for twenty is.
        [ "$stale" -lt 10 ] && exit 3
        kill -s "$signal" "$server"
        while kill -0 "$server" 2>/dev/null; do sleep 0.1; done
        rm -rf "$folder"
        exit 1
    ) 9<"$lock"
    case $? in
    0) stale=0 ;;
    3) stale=$((stale + 1)) ;;
    *) exit 0 ;;
    esac
done
