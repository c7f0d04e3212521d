// A worker in Node. Build the package first (`make typescript`), and name the server and a token:
//
//   ZNDRAW_JOBLIB_URL=http://127.0.0.1:8000 ZNDRAW_JOBLIB_TOKEN=… node examples/worker.mjs
import { setTimeout as sleep } from "node:timers/promises";
import { NdArray } from "zndraw-joblib";
import { JobWorker, NonRetryable } from "zndraw-joblib/worker";

const number = { type: "number" };
const worker = new JobWorker({
  url: process.env.ZNDRAW_JOBLIB_URL ?? "http://127.0.0.1:8000",
  token: process.env.ZNDRAW_JOBLIB_TOKEN,
  concurrency: 4,
  name: "typescript",
});

worker.job("area", ({ width, height = 1 }) => width * height, {
  schema: { type: "object", properties: { width: number, height: number }, required: ["width"], additionalProperties: false },
});

worker.job(
  "relax",
  async ({ steps = 20, seconds = 0.1 }, task) => {
    for (let step = 0; step < steps; step += 1) {
      task.progress(step, steps, { unit: "steps" });
      await sleep(1000 * seconds, undefined, { signal: task.signal }); // ends when the task is cancelled
    }
    task.log("converged");
    return NdArray.of(new Float64Array(3 * steps), [steps, 3]);
  },
  { schema: { type: "object", properties: { steps: { type: "integer" }, seconds: number } }, max_attempts: 3, retry_on: ["worker_lost"] },
);

worker.job("check", ({ text = "" }) => {
  if (text === "") throw new NonRetryable("the text is empty");
  return new TextEncoder().encode(text); // bytes are uploaded
});

await worker.run({ exitSignals: true });
