// Submits a task with the types that openapi-typescript made, and reads it back.

import createClient from "openapi-fetch";
import type { components, paths } from "./provost.js";

declare const process: { argv: string[] };

type Task = components["schemas"]["Task"];

function expect(holds: boolean, what: unknown): asserts holds {
  if (!holds) throw new Error(JSON.stringify(what));
}

const [provost, service, token] = process.argv.slice(2) as [string, string, string];
const client = createClient<paths>({ baseUrl: provost, headers: { Authorization: `Bearer ${token}` } });

const steps: components["schemas"]["StepDefinition"][] = [
  // Neither a method nor a body: both have a default.
  { name: "first", url: service, request: { path: "/first" } },
  {
    name: "second",
    url: service,
    request: { method: "POST", path: "/second", body: "{{ steps.first.output[1] }}" },
    complete_within: "10s",
    on_exhausted: { extend: "1m" },
  },
];
// Any JSON is an input, not only an object.
const input = [1.5, { deep: [true, null] }, "text"];
const submitted = await client.POST("/v1/tasks", {
  params: { header: { Prefer: "wait=30", "Idempotency-Key": "typescript-1" } },
  body: { steps, key: "typescript-1", labels: { client: "typescript" }, input },
});
expect(submitted.data !== undefined && "id" in submitted.data, submitted.error);
const task: Task = submitted.data;
expect(submitted.response.status === 200 && task.state === "processed", task);
expect(submitted.response.headers.get("etag") === `"${task.version}"`, task);
expect(submitted.response.headers.get("preference-applied") === "wait=30", task);
expect(task.labels["client"] === "typescript", task.labels);
const output: unknown = task.steps[0]?.output;
expect(JSON.stringify(output) === JSON.stringify(input), output);
expect(JSON.stringify(task.steps[1]?.output) === '{"deep":[true,null]}', task.steps[1]);
const endedAt: string | null = task.ended_at;
expect(endedAt !== null && task.error === null, task);

const read = await client.GET("/v1/tasks/{id}", { params: { path: { id: task.id }, query: { wait: "1s" } } });
expect(JSON.stringify(read.data) === JSON.stringify(task), read);

const page = await client.GET("/v1/tasks", {
  params: { query: { state: "processed", label: ["client:typescript"], limit: 5 } },
});
expect(page.data?.items.length === 1 && page.data.items[0]?.id === task.id, page);

const refused = await client.POST("/v1/tasks", {
  body: { steps: [{ name: "first", agent: "nobody", request: { path: "/" } }] },
});
expect(refused.error?.type === "/problems/invalid", refused);
expect(refused.error.errors?.[0]?.pointer === "/steps/0/agent", refused);

const blocked: components["schemas"]["Blocked"] = { reason: "steps", steps: ["first"] };
expect(blocked.reason === "steps" && blocked.steps[0] === "first", blocked);

console.log("typescript: submitted, listed and read back", task.id);
