// A worker whose clocks the tests move forward, and whose jobs wait for a line of its standard input.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { JobWorker, type TaskStopped } from "zndraw-joblib/worker";

const [url, tokenFile, room, concurrency, drainSeconds, server] = process.argv.slice(2) as [string, string, string, string, string, string];
const print = (text: string) => process.stdout.write(`${text}\n`);
const token = () => readFileSync(tokenFile, "utf8");
const isFixed = process.env["TOKEN_IS_FIXED"] !== undefined;
let isRefused = false;

let ahead = 0;
const clocks = { elapsed: performance.now.bind(performance), time: Date.now };
performance.now = () => clocks.elapsed() + 1000 * ahead;

const ran: unknown[] = [];
let orders: ((order: string) => void)[] = [];
const order = () => new Promise<string>((resolve) => orders.push(resolve));
createInterface({ input: process.stdin }).on("line", (line) => {
  const [name, seconds] = line.split(" ");
  if (name === "ahead") ahead += Number(seconds);
  else if (name === "refuse" || name === "accept") isRefused = name === "refuse";
  else if (name === "ran") print(`ran ${JSON.stringify(ran)}`);
  else {
    const waiting = orders;
    orders = [];
    for (const resolve of waiting) resolve(line);
  }
});

/** Move the clock of the server. */
async function advance(seconds: number): Promise<void> {
  const headers = { Authorization: `Bearer ${token()}`, "Content-Type": "application/json" };
  const { status } = await fetch(`${server}/clock/advance`, { method: "POST", headers, body: JSON.stringify({ seconds }) });
  if (status !== 200) throw new Error(`the clock answered ${status}`);
}

const options = { room, max_attempts: 3, retry_on: ["worker_lost" as const] };
const worker = new JobWorker({
  url,
  token: isFixed ? token() : token,
  fetch: async (input, init) => {
    const wasRefused = isRefused;
    const response = await fetch(input, wasRefused ? { ...init, headers: { ...init?.headers, Authorization: "Bearer unknown" } } : init);
    if (isFixed && !wasRefused) print("accepted");
    return response;
  },
  concurrency: Number(concurrency),
  log: (level, message) => print(`${level}: ${message}`),
});

worker.job("number", ({ value }) => {
  ran.push(value);
  return value;
}, options);

worker.job("hold", async (_payload, task) => {
  task.signal.addEventListener("abort", () => print(`stopped: ${(task.signal.reason as TaskStopped).reason}`));
  print("holds");
  return order();
}, options);

worker.job("chatty", async (_payload, task) => {
  for (let line = 0; line < 7; line += 1) task.log("x".repeat(8000));
  return order();
}, options);

worker.job("stop", () => {
  const began = clocks.time();
  print("stops");
  process.kill(process.pid, "SIGSTOP");
  // The process may run on for a moment before the signal stops it.
  while (clocks.time() - began < 1100);
}, options);

worker.job("lines", async (_payload, task) => {
  for (let line = 1; line <= 15_000; line += 1) task.log(`short ${line}`);
  print("logged");
  await order();
  for (let line = 1; line <= 200; line += 1) task.log(`${"long ".repeat(1600)}${line}`);
  task.log("nul \0 last");
  print("logged more");
  return order();
}, options);

worker.job("renew", async (_payload, task) => {
  await advance(2000);
  ahead += 1000;
  while (task.hasOldToken) await new Promise((resolve) => setTimeout(resolve, 10));
  await advance(2000);
  return (await task.submit(`${room}:jobs:number`, { value: 7 })).id;
}, options);

worker.job("text", ({ length }) => "x".repeat(length), options);
worker.job("file", ({ length }) => new Uint8Array(length), options);

const limit = drainSeconds === "" ? {} : { drainSeconds: Number(drainSeconds) };
await worker.run({ exitSignals: true, ...limit }).catch((error: Error) => print(`refused: ${error.name}: ${error.message}`));
print(`ran ${JSON.stringify(ran)}`);
print("left");
process.exit(0);
