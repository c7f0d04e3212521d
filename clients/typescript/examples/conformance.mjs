// The worker that the conformance kit plays its scenarios with:
//
//   python -m zndraw_joblib.testing.conformance --command "node clients/typescript/examples/conformance.mjs"
import { setTimeout as sleep } from "node:timers/promises";
import { JobWorker, NonRetryable } from "zndraw-joblib/worker";

const worker = new JobWorker({ url: process.env.ZNDRAW_JOBLIB_URL, token: process.env.ZNDRAW_JOBLIB_TOKEN });

worker.job(
  "conformance",
  async ({ log, steps = 0, seconds = 0, error, final = false, size, value = null }, task) => {
    if (log !== undefined) task.log(log);
    for (let step = 1; step <= steps; step += 1) task.progress(step, steps);
    await sleep(1000 * seconds, undefined, { signal: task.signal });
    if (error !== undefined) throw final ? new NonRetryable(error) : new Error(error);
    return size === undefined ? value : new Uint8Array(size).fill("x".charCodeAt(0));
  },
  { without_workers: null },
);

await worker.run({ exitSignals: true });
