// Calls of the main operations: they compile, and at run time a server answers them.
import createClient from "openapi-fetch";
import type { paths, Problem, TaskResponse } from "./rest";

const [url, token] = process.argv.slice(2) as [string, string];
const queue = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });
const name = "@global:modifiers:Rotate";
const room_id = "lab";

const job = await queue.PUT("/v1/joblib/rooms/{room_id}/jobs", {
  params: { path: { room_id: "@global" } },
  body: { category: "modifiers", name: "Rotate" },
});
const workers: string[] = job.data!.workers;

const submitted = await queue.POST("/v1/joblib/rooms/{room_id}/tasks/{name}", {
  params: { path: { room_id, name }, header: { "Idempotency-Key": "one" } },
  body: { payload: { angle: 90 } },
});
const task: TaskResponse = submitted.data!;
const position: number | null = task.queue_position;

const claimed = await queue.POST("/v1/joblib/tasks/claim", {
  params: { header: { Prefer: "wait=1" } },
  body: { worker_id: workers[0]! },
});
const attempt: number = claimed.data!.task!.attempt;

const params = { path: { task_id: task.id } };
await queue.PATCH("/v1/joblib/tasks/{task_id}", { params, body: { status: "running", attempt } });
const cancelled = await queue.PATCH("/v1/joblib/tasks/{task_id}", { params, body: { status: "cancelled" } });
const repeated = await queue.POST("/v1/joblib/tasks/{task_id}/release", { params });
const problem: Problem = repeated.error!;

const page = await queue.GET("/v1/joblib/rooms/{room_id}/tasks", {
  params: { path: { room_id }, query: { status: "cancelled", limit: 10 } },
});
const statuses: TaskResponse["status"][] = page.data!.items.map((one) => one.status);
console.log(JSON.stringify([position, cancelled.data!.status, problem.type, statuses]));
