// Calls of the client against a server whose jobs run in Python; it prints what they return.
import { getEventListeners } from "node:events";
import {
  encode,
  GroupHandle,
  InvalidPayload,
  NdArray,
  NotSerializable,
  ProblemError,
  Queue,
  ServerUnreachable,
  stringifyJson,
  TaskCancelled,
  TaskFailed,
  TaskHandle,
  TaskNotFound,
  UnexpectedResponse,
  WaitTimeout,
} from "zndraw-joblib";
import { watchRoom, watchTask } from "./react/live.js";

const [url, token, closedPort] = process.argv.slice(2) as [string, string, string];
const queue = new Queue({ url, token: async () => token, room: "lab" });
const shown: Record<string, unknown> = {};

async function errorOf(promise: Promise<unknown>): Promise<Error> {
  return promise.then(
    () => new Error("it did not fail"),
    (error: Error) => error,
  );
}

// Payloads and results: big integers, arrays, bytes, NaN.
const big = { id: 2n ** 63n + 1n, negative: -9007199254740993n, small: 3, text: '9007199254740993 \\" 12345678901234567890' };
const values = { ...big, list: [1.5, NaN, -Infinity], array: NdArray.of(new Float32Array([1, 2, 3, 4, 5, 6]), [2, 3]), bytes: new Uint8Array([0, 255]) };
const echoed = (await queue.run("echo", { value: values })) as typeof values;
shown["echo"] = encode(echoed);
shown["same"] = [typeof echoed.id, echoed.id === big.id, echoed.text === big.text, echoed.array.data instanceof Float32Array, echoed.bytes];
const large = (await queue.run("large", { order: "F" })) as NdArray<BigInt64Array<ArrayBuffer>>;
shown["large"] = [large.dtype, large.shape, large.data[1], large.data[400], large.data.length];
shown["halves"] = ((await queue.run("halves")) as NdArray).toNested();

// Errors are classes.
const failed = (await errorOf(queue.run("broken", { text: "no" }))) as TaskFailed;
shown["failed"] = [failed instanceof TaskFailed, failed.code, failed.message.split(": ").at(-1), failed.traceback?.includes("raise")];
const refused = (await errorOf(queue.submit("broken", { text: 1 }))) as ProblemError;
shown["refused"] = [refused instanceof InvalidPayload, refused.type, refused.status, refused.title, refused.detail];
const missing = await errorOf(queue.read("01a221df-448b-7f38-8c20-8759b26ad64c"));
shown["missing"] = [missing instanceof TaskNotFound, missing.name];
const away = await errorOf(new Queue({ url: `http://127.0.0.1:${closedPort}`, token }).submit("a:b:c"));
shown["away"] = [away instanceof ServerUnreachable, away instanceof ServerUnreachable && away.wasSent];
shown["other"] = (await errorOf(new Queue({ url: `${url}/v1/problems/locked#`, token }).read("x"))) instanceof UnexpectedResponse;

// A lost response: the repeat has the same key, so there is one task.
let losses = 0;
const lossy = new Queue({
  url,
  token,
  room: "lossy",
  fetch: async (input, init) => {
    const response = await fetch(input, init);
    if (init?.method === "POST" && losses++ < 1) throw new TypeError("the response is lost");
    return response;
  },
});
const once = await lossy.submit("echo", { value: 1 });
const again = await lossy.submit("echo", { value: 1 }, { idempotencyKey: "a key" });
const repeated = await lossy.submit("echo", { value: 1 }, { idempotencyKey: "a key" });
shown["keys"] = [losses > 1, again.id === repeated.id, (await lossy.tasks()).length, await once.result()];

// Many tasks: one of them is refused.
const jobs = [1, "x", 3].map((text) => ({ job: "broken", payload: { text } }));
const many = await queue.submitMany([...jobs, { job: "echo", payload: { value: 4 } }]);
shown["many"] = many.map((item) => (item instanceof TaskHandle ? "task" : item.name));
const atomic = await errorOf(queue.submitMany(jobs, { atomic: true }));
shown["atomic"] = [atomic.name, atomic.message.slice(0, 8)];
const handles = many.filter((item) => item instanceof TaskHandle);
shown["ended"] = (await queue.waitAll(handles.map((handle) => handle.id))).map((task) => task.status);

// Groups.
const group: GroupHandle = await queue.submitGroup([5n ** 30n, 6].map((value) => ({ job: "echo", payload: { value } })), { name: "two" });
shown["group"] = await group.results();
const states: string[] = [];
for await (const { event } of group.follow()) states.push(event);
shown["states"] = states;

// The state of a page: of a task until its end, and of a room.
const watched = await queue.submit("echo", { value: 7 });
const seen: unknown[] = [];
await watchTask(queue, watched.id, new AbortController().signal, ({ task }) => seen.push(task?.status, task?.result));
shown["watched"] = seen.slice(-2);
const written: string[] = [];
await watchTask(queue, watched.id, new AbortController().signal, ({ log }) => written.push(log.map((line) => line.text).join()));
shown["written"] = written.at(-1);
const leaving = new AbortController();
await watchRoom(queue, "lab", leaving.signal, ({ tasks }) => {
  shown["room"] = [tasks[0]?.id === watched.id, tasks[0]?.status];
  leaving.abort();
});

// Wait, abort and cancel.
const idle = await queue.submit("idle", {}, { tags: ["waits"], unique: { key: "one" } });
shown["timeout"] = (await errorOf(idle.wait({ timeoutSeconds: 0.1 }))) instanceof WaitTimeout;
const reason = new Error("the page is closed");
const controller = new AbortController();
const waiting = errorOf(idle.result({ signal: controller.signal }));
controller.abort(reason);
shown["aborted"] = (await waiting) === reason;
const ending = errorOf(idle.result());
await idle.cancel();
shown["cancelled"] = (await ending) instanceof TaskCancelled;
shown["history"] = (await idle.history()).transitions.map((change) => change.status);
shown["explained"] = (await idle.explain()).status;
shown["found"] = (await queue.tasks({ tag: "waits" })).length;

// A stream goes on after an event that the caller has; an aborted one yields no event that came with the last.
let since = "";
for await (const { id } of queue.followRoom("lab")) {
  since = id!;
  break;
}
await queue.run("echo", { value: 8 });
const left = new AbortController();
const events: string[] = [];
const following = (async () => {
  for await (const { event } of queue.followRoom("lab", { signal: left.signal, after: since })) {
    events.push(event);
    left.abort(reason);
  }
})();
shown["left"] = [(await errorOf(following)) === reason, events.length];

// A wait that fails ends the others.
const signals: AbortSignal[] = [];
const counting = new Queue({ url, token, fetch: (input, init) => (signals.push(init!.signal!), fetch(input, init)) });
const open = await queue.submit("idle", {});
const gone = await errorOf(counting.waitAll([open.id, "01a221df-448b-7f38-8c20-8759b26ad64c", open.id]));
await new Promise((resolve) => setTimeout(resolve));
const waits = signals.length;
shown["others"] = [gone instanceof TaskNotFound, signals.filter((one) => one.aborted).length >= 2, waits < 6];
await open.cancel();

// Aborted bodies; no listener stays on the signal of the caller.
const images = new AbortController();
const { id: stored } = await queue.submit("large", { order: "C" });
await queue.wait(stored);
await (await queue.openResult(stored, { signal: images.signal })).arrayBuffer();
const opened = await queue.openResult(stored, { signal: images.signal });
const listeners = getEventListeners(images.signal, "abort").length;
images.abort(reason);
shown["opened"] = [listeners, (await errorOf(opened.arrayBuffer())) === reason];

// A token that does not come, a server that does not respond, and an application that refuses the token.
const hangs = new Queue({ url, token: () => new Promise<string>(() => undefined), timeoutSeconds: 0.05 });
const closing = new AbortController();
const hanging = errorOf(new Queue({ url, token: () => new Promise<string>(() => undefined) }).read(open.id, { signal: closing.signal }));
closing.abort(reason);
shown["token"] = [(await errorOf(hangs.read(open.id))).message, (await hanging) === reason];
const silent = new Queue({ url, fetch: (_, init) => new Promise((_, reject) => init!.signal!.addEventListener("abort", () => reject(init!.signal!.reason as Error))) });
const began = performance.now();
const late = await errorOf(silent.wait(open.id, { timeoutSeconds: 0.1 }));
shown["silent"] = [late instanceof WaitTimeout, performance.now() - began < 10_000];
const refusal = () => new Response('{"detail":"Not authenticated"}', { status: 401, headers: { "Content-Type": "application/json" } });
const hosted = new Queue({ url, fetch: async () => refusal() });
const refusals = [hosted.wait(open.id), hosted.read(open.id), hosted.follow(open.id).next()];
shown["hosted"] = (await Promise.all(refusals.map(errorOf))).map((error) => error instanceof UnexpectedResponse && error.isRefusal);
const echoes = new Queue({ url, fetch: async () => new Response("Authorization: Bearer secret", { status: 404 }), retrySeconds: 0 });
shown["echoes"] = (await errorOf(echoes.read(open.id))).message.includes("secret");

// Timers beyond those of the platform; addresses and payloads that cannot be sent.
shown["endless"] = (await new Queue({ url, token, timeoutSeconds: Infinity }).jobs()).length > 0;
const addresses = ["127.0.0.1:8000", "localhost:8000", "http://user:secret@host", "http://user:secret@ host"];
shown["addresses"] = await Promise.all(addresses.map(async (address) => (await errorOf((async () => new Queue({ url: address }))())).message));
const page = globalThis as unknown as { location?: { origin: string } };
page.location = { origin: "null" }; // that of a file
shown["file"] = (await errorOf(new Queue({ url: `http://127.0.0.1:${closedPort}`, token }).read(open.id))) instanceof ServerUnreachable;
delete page.location;
const circular: Record<string, unknown> = {};
circular["self"] = circular;
shown["circular"] = (await errorOf(queue.submit("echo", circular))) instanceof NotSerializable;

// Any operation, with its types; a path or a body that the API does not have would not compile.
const me = await queue.connection.call("get", "/v1/joblib/me");
// @ts-expect-error: there is no such status
const wrong = () => queue.connection.call("patch", "/v1/joblib/tasks/{task_id}", { path: { task_id: "" }, body: { status: "canceled" } });
// @ts-expect-error: the path needs an id
const incomplete = () => queue.connection.call("get", "/v1/joblib/tasks/{task_id}");
shown["me"] = [typeof me.id, typeof wrong, typeof incomplete];

process.stdout.write(stringifyJson(shown));
