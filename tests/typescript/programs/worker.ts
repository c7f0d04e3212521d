// A worker whose jobs the tests submit from Python. It loses the first responses of the requests that the tests name.
import { NdArray } from "zndraw-joblib";
import { JobWorker, NonRetryable, ResultFile, Retry, TaskStopped } from "zndraw-joblib/worker";

const [url, token, ...lost] = process.argv.slice(2) as [string, string, ...string[]];
const losses = new Set(lost);
const worker = new JobWorker({
  url,
  token,
  concurrency: 2,
  name: "typescript",
  labels: { gpu: "none" },
  log: (level, message) => process.stdout.write(`${level}: ${message}\n`),
  fetch: async (input, init) => {
    const operation = `${init?.method} ${new URL(String(input)).pathname.split(/[/:]|%3A/).at(-1)}`;
    if (losses.delete(`refused ${operation}`)) {
      process.stdout.write(`lost: refused ${operation}\n`);
      throw new TypeError("fetch failed", { cause: Object.assign(new Error("refused"), { code: "ECONNREFUSED" }) });
    }
    const response = await fetch(input, init);
    if (!losses.delete(operation)) return response;
    await response.arrayBuffer();
    process.stdout.write(`lost: ${operation}\n`);
    throw new TypeError(`the response to ${operation} is lost`);
  },
});

const sleep = (seconds: number, signal?: AbortSignal) =>
  new Promise<void>((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason as Error);
    });
  });

worker.job("echo", ({ value }) => value, { schema: { type: "object", required: ["value"] } });
worker.job("mean", ({ values }) => {
  const { data, shape } = values as NdArray<Float64Array<ArrayBuffer>>;
  return { mean: data.reduce((sum, one) => sum + one, 0) / data.length, shape };
});
worker.job("grid", ({ size }) => NdArray.of(new Float64Array(size * size).map((_, index) => index), [size, size]));
worker.job("file", ({ text }) => new ResultFile(new TextEncoder().encode(text), { contentType: "text/csv", filename: "täble.csv" }));
worker.job("long", ({ length }) => "ä".repeat(length));
worker.job("circle", () => {
  const value: Record<string, unknown> = { map: new Map() };
  return value;
});
worker.job(
  "flaky",
  (_payload, task) => {
    task.progress(task.attempt, 3, { message: "trying", data: { big: 2n ** 60n + 1n } });
    task.log(`attempt ${task.attempt}\nsecond line`);
    if (task.attempt < 2) throw new Retry("not yet", 0.01);
    throw new NonRetryable("never", { cause: new RangeError("the reason") });
  },
  { max_attempts: 5, retry_on: ["error"], category: "modifiers", room: "lab" },
);
worker.job("wait", async ({ seconds }, task) => {
  task.log("begins");
  try {
    await sleep(seconds, task.signal);
  } catch (error) {
    process.stdout.write(`stopped: ${(error as TaskStopped).reason}\n`);
    throw error;
  }
  return task.attempt;
}, { max_attempts: 3, retry_on: ["worker_lost"] });
worker.job("parent", async (_payload, task) => {
  const child = await task.submit("@global:jobs:echo", { value: 2n ** 60n });
  return child.result();
});

await worker.run({ exitSignals: true });
process.stdout.write("left\n");
