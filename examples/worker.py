#!/usr/bin/env python3
"""A worker: fetches the steps of an agent with the mode "pull", works on them, and replies.

    python3 worker.py http://127.0.0.1:8080 video

The token of the role "work" comes from PROVOST_TOKEN, if there is one. A step is fetched a second time if a reply was
lost: do the work once for each idempotency_key.
"""
import http.client, json, os, socket, sys, threading, time, urllib.error, urllib.request

URL, AGENT = sys.argv[1].rstrip("/"), sys.argv[2]
WORKER = f"{socket.gethostname()}-{os.getpid()}"


def post(path, body):
    """The status and the body of the response; waits as long as Provost cannot be reached."""
    body = json.dumps(body, allow_nan=False).encode()
    headers = {"content-type": "application/json"}
    if "PROVOST_TOKEN" in os.environ:
        headers["authorization"] = "Bearer " + os.environ["PROVOST_TOKEN"]
    while True:
        try:
            request = urllib.request.Request(URL + path, body, headers)
            with urllib.request.urlopen(request, timeout=90) as response:
                return response.status, json.loads(response.read() or "null")
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return error.code, error.reason
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(1)


def work(step):
    """Here is your own work, or its undo: see step["purpose"]. Its output is returned; an exception has it retried."""
    return {"done": step["request"]["body"]}


def beat(step, done):
    """Says twice a second that the step is being worked on."""
    while not done.wait(0.5):
        post(f"/v1/replies/{step['token']}/heartbeat", {})


while True:
    status, answer = post(f"/v1/agents/{AGENT}/claim", {"worker": WORKER, "max": 1, "wait": "30s"})
    if status != 200:
        sys.exit(f"no work: {status} {answer}")
    for step in answer["steps"]:
        path, done = f"/v1/replies/{step['token']}", threading.Event()
        if step["heartbeat_within"]:
            threading.Thread(target=beat, args=(step, done), daemon=True).start()
        try:
            status, answer = post(path, {"output": work(step)})
            if status not in (204, 404, 409):  # such as an output that is too large; the others are too late
                raise ValueError(f"the output was refused: {status} {answer}")
        except Exception as error:
            post(path, {"error": {"message": (str(error) or type(error).__name__)[:4096]}})
        done.set()
