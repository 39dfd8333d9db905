"""Submits a task with the client that openapi-python-client made, and reads it back."""

import sys

from provost import AuthenticatedClient
from provost.api.service import livez
from provost.api.tasks import get_task, list_tasks, submit_task, task_history
from provost.api.workflows import put_workflow, validate_workflow
from provost.models import (
    BlockedBySteps,
    DryRunReport,
    Extend,
    Health,
    Labels,
    Method,
    Problem,
    StepDefinition,
    StepRequest,
    StepState,
    Submission,
    Task,
    TaskPage,
    TaskState,
    Workflow,
    WorkflowInput,
)

provost, service, token = sys.argv[1:]
client = AuthenticatedClient(base_url=provost, token=token)

alive = livez.sync(client=client)
assert isinstance(alive, Health) and alive.status.value == "alive", alive

labels = Labels()
labels["client"] = "python"
steps = [
    # Neither a method nor a body: both have a default.
    StepDefinition(name="first", url=service, request=StepRequest(path="/first")),
    StepDefinition(
        name="second",
        url=service,
        request=StepRequest(method=Method.POST, path="/second", body="{{ steps.first.output[1] }}"),
        complete_within="10s",
        on_exhausted=Extend(extend="1m"),
    ),
]
# Any JSON is an input, not only an object.
submitted = submit_task.sync_detailed(
    client=client,
    body=Submission(steps=steps, key="python-1", labels=labels, input_=[1.5, {"deep": [True, None]}, "text"]),
    prefer="wait=30",
    idempotency_key="python-1",
)
assert submitted.status_code == 200, submitted.content
assert submitted.headers["preference-applied"] == "wait=30"
task = submitted.parsed
assert isinstance(task, Task), task
assert task.state is TaskState.PROCESSED, task
assert submitted.headers["etag"] == f'"{task.version}"'
assert task.labels["client"] == "python"
assert task.input_ == [1.5, {"deep": [True, None]}, "text"], task.input_
assert [step.state for step in task.steps] == [StepState.PROCESSED] * 2
assert task.steps[0].output == task.input_
assert task.steps[1].output == {"deep": [True, None]}
assert task.steps[1].after == ["first"]
assert task.error is None and task.complete_by is None
assert task.created_at <= (task.ended_at or task.created_at)

read = get_task.sync(client=client, id=task.id, wait="1s")
assert isinstance(read, Task) and read.to_dict() == task.to_dict(), read

page = list_tasks.sync(client=client, state=TaskState.PROCESSED, label=["client:python"], limit=5)
assert isinstance(page, TaskPage) and [item.id for item in page.items] == [task.id], page
assert page.next_cursor is None
entries = task_history.sync(client=client, id=task.id)
assert entries is not None and not isinstance(entries, Problem)
assert entries.items[0].type_ == "task.accepted", entries.items[0]

# A step that waits says for which others.
waiting = submit_task.sync(
    client=client,
    body=Submission(
        steps=[
            StepDefinition(name="first", agent="nobody", request=StepRequest(path="/")),
            StepDefinition(name="second", url=service, request=StepRequest(path="/")),
        ]
    ),
)
assert isinstance(waiting, Problem) and waiting.type_ == "/problems/invalid", waiting
assert waiting.errors and waiting.errors[0].pointer == "/steps/0/agent", waiting
held = submit_task.sync(client=client, body=Submission(steps=steps, labels=labels))
assert isinstance(held, Task), held
for step in held.steps[1:]:
    blocked = step.blocked_by
    assert blocked is None or isinstance(blocked, BlockedBySteps) and blocked.steps == ["first"], blocked

workflow = WorkflowInput(steps=steps, description="Made by a generated client")
verdict = validate_workflow.sync("python", client=client, body=workflow)
assert isinstance(verdict, DryRunReport) and verdict.steps[0].method is Method.POST, verdict
kept = put_workflow.sync("python", client=client, body=workflow)
assert isinstance(kept, Workflow) and kept.version == 1, kept
assert kept.steps[1].name == "second", kept
print("python: submitted, listed and read back", task.id)
