#!/usr/bin/env python3
"""A service that steps can rely on: `provost agent check` finds nothing wrong with it. It charges cards.

    python3 service.py 9000

Work is done once for each Idempotency-Key; an undo is remembered, even if it comes first; a probe gets the truth.
"""
import itertools, json, sys, threading, time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Refused(Exception):
    """A response that is no success: its status, why, and headers."""


class Charges:
    """What was done for each key. Keep it in your database: this one forgets everything when it stops."""

    takes = 0.2

    def __init__(self):
        self.lock, self.jobs, self.ids = threading.Lock(), {}, itertools.count(1)

    def work(self, key, complete_by, order):
        with self.lock:
            job = self.jobs.get(key)
            if job:
                return self.repeated(job)
            if complete_by < datetime.now(timezone.utc):
                raise Refused(409, "Provost has given this attempt up")
            if not isinstance(order, dict) or not isinstance(order.get("amount"), int):
                raise Refused(422, "an order has an amount")
            job = self.jobs[key] = {"state": "in_progress"}
        try:
            output = self.charge(order)
        except BaseException:
            with self.lock:
                del self.jobs[key]  # nothing was done: the next attempt does it
            raise
        with self.lock:
            job.update(state="done", output=output)
        return output

    def repeated(self, job):
        if job["state"] == "in_progress":
            raise Refused(503, "the first request is still being worked on", {"retry-after": "1"})
        if job["state"] == "not_done":
            raise Refused(409, "this was undone")
        return job["output"]

    def charge(self, order):
        """Here is your own work."""
        time.sleep(self.takes)
        return {"id": f"ch_{next(self.ids)}", "amount": order["amount"]}

    def undo(self, key):
        with self.lock:
            # If there is no such work, its request may still be on its way: then it must find this.
            job = self.jobs.setdefault(key, {"state": "not_done"})
            if job["state"] == "in_progress":
                raise Refused(503, "the work is not finished", {"retry-after": "1"})
            job.update(state="not_done", output=None)

    def probe(self, key):
        with self.lock:
            return dict(self.jobs.get(key, {"state": "not_done"}))


class Handler(BaseHTTPRequestHandler):
    charges = Charges()

    def do_POST(self):
        def work():
            order = json.loads(self.rfile.read(int(self.headers["content-length"])))
            complete_by = datetime.fromisoformat(self.headers["provost-complete-by"].replace("Z", "+00:00"))
            return self.charges.work(self.headers["idempotency-key"], complete_by, order)

        self.respond(work)

    def do_DELETE(self):
        self.respond(lambda: self.charges.undo(self.headers["provost-undoes"]))

    def do_GET(self):
        self.respond(lambda: self.charges.probe(self.headers["provost-probes"]))

    def respond(self, handle):
        try:
            status, body, headers = 200, handle(), {}
        except Refused as refused:
            status, why, *headers = refused.args
            body, headers = {"error": why}, headers[0] if headers else {}
        except ValueError:
            status, body, headers = 400, {"error": "the body is not JSON"}, {}
        text = json.dumps(body).encode()
        self.send_response(status)
        headers = {"content-type": "application/json", "content-length": str(len(text)), **headers}
        for name, value in headers.items():
            self.send_header(name, value)
        try:
            self.end_headers()
            self.wfile.write(text)
        except ConnectionError:
            pass  # the caller has hung up, and asks again with the same key

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
