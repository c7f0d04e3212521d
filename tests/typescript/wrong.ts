// Calls that the server would refuse, or that expect what it does not send: each must not compile.
import createClient from "openapi-fetch";
import type { paths } from "./rest";

const queue = createClient<paths>({ baseUrl: "" });
const params = { path: { task_id: "" } };

queue.PATCH("/v1/joblib/tasks/{task_id}", { params, body: { status: "canceled" } });
queue.PATCH("/v1/joblib/tasks/{task_id}", { params, body: { attempt: "1", status: "running" } });
queue.PATCH("/v1/joblib/tasks/{task_id}", { body: { status: "cancelled" } });
queue.POST("/v1/joblib/tasks/claim", { body: {} });
queue.POST("/v1/joblib/tasks/claim", { params: { header: { Prefer: ["wait=1"] } }, body: { worker_id: "" } });
queue.GET("/v1/joblib/tasks/{task_id}/results", { params });
queue.GET("/v1/joblib/tasks/{task_id}", { params }).then(({ data }) => data!.queue_position.toFixed());
queue.GET("/v1/joblib/tasks/{task_id}", { params }).then(({ data }) => data!.name);
