#!/usr/bin/env python3
"""The service of service.py with one fault, to see what `provost agent check` makes of it.

    python3 broken_service.py 9000 undo_twice

The fault has the name of the point that fails. Do not copy anything from here.
"""
import select, sys
from datetime import datetime, timezone

from http.server import ThreadingHTTPServer

import service
from service import Refused


class Broken(service.Charges):
    fault = sys.argv[2]
    takes = {"latency": 1.2, "after_dropped_answer": 0.5, "probe_during_work": 0.5}.get(fault, 0.2)

    def work(self, key, complete_by, order):
        now = datetime.now(timezone.utc)
        job = self.jobs.get(key)
        if self.fault == "work":
            raise Refused(402, "no cards are charged today")
        if self.fault == "late_request" and complete_by < now:
            complete_by = now.replace(year=now.year + 1)
        if self.fault == "error_classes" and not isinstance(order, dict):
            raise Refused(500, "that was not expected")
        if job and job["state"] == "done" and self.forgets(job, now):
            del self.jobs[key]
        if self.fault == "twice_at_once" and job and job["state"] == "in_progress":
            return self.charge(order)
        if self.fault == "work_after_undo" and job and job["state"] == "not_done":
            del self.jobs[key]
        output = super().work(key, complete_by, order)
        self.jobs[key].update(complete_by=complete_by)
        return output

    def forgets(self, job, now):
        return {
            "again": "dropped" not in job and job.get("complete_by", now) > now,
            "after_complete_by": job.get("complete_by", now) < now,
            "after_dropped_answer": "dropped" in job,
        }.get(self.fault, False)

    def charge(self, order):
        output = super().charge(order)
        if self.fault == "size":
            output["receipt"] = "x" * 300_000
        return output

    def repeated(self, job):
        try:
            return super().repeated(job)
        except Refused as refused:
            if self.fault == "retry_after" and refused.args[0] == 503:
                raise Refused(503, "come back later", {"retry-after": "in a while"})
            raise

    def undo(self, key):
        state = self.jobs.get(key, {}).get("state")
        if self.fault == "undo" and state == "done":
            raise Refused(403, "charges are final")
        if self.fault == "undo_twice" and state == "not_done":
            raise Refused(409, "this was undone before")
        if self.fault == "undo_before_work" and state is None:
            raise Refused(400, "no such charge")
        super().undo(key)
        if self.fault == "probe_after_undo" and state == "done":
            self.jobs[key]["undone"] = True

    def probe(self, key):
        job = super().probe(key)
        known = key in self.jobs
        if self.fault == "probe_before_work" and not known:
            return {"state": "done", "output": None}
        if self.fault == "probe_during_work" and job["state"] == "in_progress":
            return {"state": "not_done"}
        if self.fault == "probe_after_work" and job["state"] == "done":
            return {"state": "not_done"}
        if self.fault == "probe_after_undo" and "undone" in job:
            return {"state": "done", "output": None}
        if self.fault == "probe_output" and job["state"] == "done":
            job["output"] = {"charge": job["output"]["id"]}
        return {name: job[name] for name in ("state", "output") if name in job}


class Handler(service.Handler):
    charges = Broken()

    def respond(self, handle):
        def noticed():
            body, job = handle(), self.charges.jobs.get(self.headers["idempotency-key"])
            if job and select.select([self.connection], [], [], 0)[0]:
                job["dropped"] = True  # a caller that waits sends nothing
            return body

        super().respond(noticed)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
