// A worker whose job throws odd things, whose log throws, and some of whose requests are refused or get no response.
import { JobWorker } from "zndraw-joblib/worker";

const [url, token, fault] = process.argv.slice(2) as [string, string, string?];
let losesClaim = fault === "loses-claim";
const print = (text: string) => process.stdout.write(`${text}\n`);
const problem = (status: number, name: string) => {
  const body = JSON.stringify({ type: `/v1/problems/${name}`, title: name, status });
  return new Response(body, { status, headers: { "Content-Type": "application/problem+json" } });
};
const registrations: Record<string, number> = {};

/** Refuse the second registration of `refused` for good and of `odd` once; lose the response to a claim that gets tasks. */
async function send(input: string | URL | Request, init?: RequestInit): Promise<Response> {
  if (init?.method === "PUT") {
    const { name } = JSON.parse(String(init.body)) as { name: string };
    const count = (registrations[name] = (registrations[name] ?? 0) + 1);
    if (count > 1 && name === "refused") return problem(403, "forbidden");
    if (count === 2) return problem(503, "too-busy");
  }
  if (fault === "forbidden" && String(input).endsWith("/claim")) return problem(403, "forbidden");
  const response = await fetch(input, init);
  if (!losesClaim || !String(input).endsWith("/claim")) return response;
  if (!(await response.clone().text()).includes('"attempt"')) return response;
  losesClaim = false;
  print("lost");
  worker.stop();
  throw new TypeError("the response is lost");
}

function log(level: string, message: string): void {
  print(`${level}: ${message}`);
  throw new Error("the log is full");
}

const invalid = new JobWorker({ url, token: "secret\nbreak", connectSeconds: 2, log });
await invalid.run().catch((error: Error) => print(`invalid: ${error.name}: ${error.message}`));

const things: Record<string, unknown> = {
  bare: Object.create(null),
  nameless: Object.assign(new Error("no name"), { name: undefined }),
  stack: Object.assign(new Error("odd stack"), { stack: [1] }),
  hostile: new Proxy(new Error(), { get: () => { throw new Error("not this way"); } }),
};
const worker = new JobWorker({ url, token, connectSeconds: 0.1, log, fetch: send });
worker.job("refused", () => null);
worker.job("odd", ({ thing }) => {
  throw things[thing];
});
await worker.run({ exitSignals: true }).catch((error: Error) => print(`refused: ${error.name}`));
print("left");
