// A typed client of the queue: requests, the stream of a task, and live events of a room.
import createClient, { type Client } from "openapi-fetch";
import { io, type Socket } from "socket.io-client";
import type { ClientToServerEvents, SentEvent, ServerToClientEvents, TaskStream } from "./events";
import type { paths, Problem, TaskResponse } from "./rest";

/** An event of a task's stream; `event` determines the type of `data`. */
export type TaskEvent = SentEvent<TaskStream>;

/** A refusal of the server. */
export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail ?? problem.title);
  }
}

/** One user's access to one room of a queue. */
export class Queue {
  readonly #rest: Client<paths>;

  constructor(
    readonly url: string,
    readonly token: string,
    readonly room: string,
  ) {
    this.#rest = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });
  }

  /** Submit a task of a job, `room:category:name`. */
  async submit(name: string, payload: Record<string, unknown>): Promise<TaskResponse> {
    const params = { path: { room_id: this.room, name } };
    return value(await this.#rest.POST("/v1/joblib/rooms/{room_id}/tasks/{name}", { params, body: { payload } }));
  }

  /** Cancel a task that has not ended. */
  async cancel(task_id: string): Promise<TaskResponse> {
    const params = { path: { task_id } };
    return value(await this.#rest.PATCH("/v1/joblib/tasks/{task_id}", { params, body: { status: "cancelled" } }));
  }

  /** Return the newest tasks of the room. */
  async tasks(limit = 20): Promise<TaskResponse[]> {
    const params = { path: { room_id: this.room }, query: { limit } };
    return value(await this.#rest.GET("/v1/joblib/rooms/{room_id}/tasks", { params })).items;
  }

  /** Yield a snapshot of a task and then its events until its end, also after lost connections. */
  async *follow(task_id: string): AsyncGenerator<TaskEvent> {
    for (let last = ""; ; await new Promise((resolve) => setTimeout(resolve, 1000))) {
      const headers = { Authorization: `Bearer ${this.token}`, Accept: "text/event-stream" };
      const position: Record<string, string> = last ? { "Last-Event-ID": last } : {};
      try {
        const url = `${this.url}/v1/joblib/tasks/${encodeURIComponent(task_id)}/events`;
        const answer = await fetch(url, { headers: { ...headers, ...position } });
        if (!answer.ok && answer.status < 500) throw new Refused((await answer.json()) as Problem);
        if (!answer.ok || answer.body === null) continue;
        for await (const event of parsed(answer.body)) {
          last = event.id ?? last;
          yield event;
          if (event.event === "end") return;
        }
      } catch (error) {
        if (error instanceof Refused) throw error;
        console.warn("The connection is lost; reading on in a second.", error);
      }
    }
  }

  /** Open a connection that notifies of every change of the room's tasks. Read the tasks after each join. */
  watch(onJoin: () => void): Socket<ServerToClientEvents, ClientToServerEvents> {
    const socket: Socket<ServerToClientEvents, ClientToServerEvents> = io(this.url, { auth: { token: this.token } });
    socket.on("connect", () => {
      socket.emit("join_room", { room_id: this.room }, (answer) => {
        if ("type" in answer) console.error(answer.detail);
        else onJoin();
      });
    });
    return socket;
  }
}

function value<Data>(answer: { data?: Data; error?: Problem }): Data {
  if (answer.data === undefined) throw new Refused(answer.error ?? { type: "about:blank", title: "No answer", status: 0 });
  return answer.data;
}

async function* parsed(body: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<TaskEvent> {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let text = ""; ; ) {
      const { value: chunk, done } = await reader.read();
      if (done) return;
      const blocks = (text + chunk).split("\n\n"); // an event ends with an empty line
      text = blocks.pop() ?? "";
      for (const block of blocks) {
        const lines = block.split("\n").map((line) => line.split(/: (.*)/, 2));
        const { event, data, id } = Object.fromEntries(lines) as Record<string, string | undefined>;
        if (event && data) yield { event, data: JSON.parse(data), ...(id && { id }) } as TaskEvent;
      }
    }
  } finally {
    await reader.cancel();
  }
}
