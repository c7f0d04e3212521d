/** The connection to a server: requests with a timeout, a signal and the caller's identity, and how errors are read. */
import { JoblibError, ProblemError, ServerUnreachable, UnexpectedResponse } from "./errors.js";
import { parseJson, randomId } from "./json.js";
import { BY_STATUS, PROBLEMS } from "./problems.js";
import { after, describe, isRepeatable, isUnreachable, repeated } from "./retry.js";
import type { paths, Problem } from "./rest.js";
import { toJson } from "./values.js";

/** A token, or a function that returns the present one. */
export type Token = string | (() => string | Promise<string>);

export interface ConnectionOptions {
  /** The server's address without `/v1/joblib`, with the prefix of a host's app. By default that of the page. */
  url?: string;
  /** The bearer token. Without one, a page's requests have its cookies, if its server accepts them. */
  token?: Token;
  /** Further headers of each request. */
  headers?: Record<string, string>;
  /** How long to wait for a response, besides the seconds that a request asks the server to wait. */
  timeoutSeconds?: number;
  /** How long a request is repeated that gets no response. */
  retrySeconds?: number;
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** Aborts the request: it rejects with the reason of the signal. */
  signal?: AbortSignal | undefined;
}

/** A request, as data. */
export interface Request extends CallOptions {
  method: string;
  /** The path below `/v1/joblib`, encoded. */
  path: string;
  query?: Record<string, unknown> | undefined;
  /** Sent as JSON. */
  body?: unknown;
  /** Sent as it is. */
  content?: string | Uint8Array<ArrayBuffer> | Blob;
  contentType?: string;
  headers?: Record<string, string>;
  /** How many seconds the server is asked to wait. */
  wait?: number;
  timeoutSeconds?: number;
  /** The idempotency key: the server applies the requests with a key once, so they are repeated. */
  key?: string;
}

export interface Answer<Data> {
  data: Data;
  headers: Headers;
}

const PREFIX = "/v1/joblib";
const RESPONSE_SECONDS = 30;
const POLL_MARGIN_SECONDS = 10;
const LONGEST_RETRY_AFTER_SECONDS = 300;
const SHOWN_CHARACTERS = 120;
const REFUSALS = new Set([401, 403, 423]);
const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);

type Method = "get" | "put" | "post" | "patch" | "delete";
type Operation<M extends Method, P extends keyof paths> = Exclude<paths[P][M], undefined>;
/** The paths that have a method. */
export type PathOf<M extends Method> = { [P in keyof paths]: [Operation<M, P>] extends [never] ? never : P }[keyof paths];
type Part<Op, Name extends string> = Op extends { parameters: infer Parameters }
  ? Name extends keyof Parameters
    ? Exclude<Parameters[Name], undefined>
    : never
  : never;
type JsonOf<Content> = Content extends { content: { "application/json": infer Data } } ? Data : undefined;
/** What an operation returns. */
export type AnswerOf<M extends Method, P extends keyof paths> =
  Operation<M, P> extends { responses: infer Responses } ? JsonOf<Responses[Extract<keyof Responses, 200 | 201 | 202 | 204>]> : never;
type BodyOf<Op> = Op extends { requestBody: infer Body } ? JsonOf<Body> : Op extends { requestBody?: infer Body } ? JsonOf<Body> | undefined : undefined;
type Given<Name extends string, Value> = [Value] extends [never] ? { [N in Name]?: never } : object extends Value ? { [N in Name]?: Value } : { [N in Name]: Value };

/** The parameters and the body of an operation, by their names in the REST API. */
export type OperationOptions<M extends Method, P extends keyof paths> = CallOptions & {
  wait?: number;
  key?: string;
  timeoutSeconds?: number;
} & Given<"path", Part<Operation<M, P>, "path">> & {
    query?: [Part<Operation<M, P>, "query">] extends [never] ? never : Part<Operation<M, P>, "query">;
  } & (undefined extends BodyOf<Operation<M, P>> ? { body?: Exclude<BodyOf<Operation<M, P>>, undefined> } : { body: BodyOf<Operation<M, P>> });

/** Sends requests to one server, as one user. */
export class Connection {
  readonly url: string;
  readonly retrySeconds: number;
  /** Called after each request with why it failed, or undefined; not for those of connections that are made from this one. */
  onResponse: ((error?: unknown) => void) | undefined;
  readonly #options: ConnectionOptions;
  readonly #fetch: typeof fetch;
  /** Whether a response has come: also one of the connection that this one was made from. */
  #reached = { server: false };

  constructor(options: ConnectionOptions = {}) {
    const page = pageOrigin();
    const url = options.url ?? page;
    if (url === undefined) throw new JoblibError("url: name the address of the server, such as http://127.0.0.1:8000");
    this.url = checkedUrl(url);
    this.retrySeconds = options.retrySeconds ?? 30;
    this.#options = options;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /** Whether a function returns the token, so that a refused one may be replaced. */
  get hasTokenFunction(): boolean {
    return typeof this.#options.token === "function";
  }

  /** Return a connection to the same server, with another token. */
  withToken(token: Token): Connection {
    const other = new Connection({ ...this.#options, url: this.url, token });
    other.#reached = this.#reached;
    return other;
  }

  /**
   * Call any operation of the REST API, with the types of its path:
   * `call("get", "/v1/joblib/tasks/{task_id}", { path: { task_id } })`. A request that reads, or has a `key`,
   * is repeated while the server does not respond.
   */
  async call<M extends Method, P extends PathOf<M>>(method: M, path: P, ...given: CallArguments<M, P>): Promise<AnswerOf<M, P>> {
    const options = (given[0] ?? {}) as Partial<Request> & { path?: Record<string, unknown> };
    const { path: parts = {}, ...rest } = options;
    const filled = filledPath(String(path), parts).slice(PREFIX.length);
    const { data } = await this.json<AnswerOf<M, P>>({ method: method.toUpperCase(), ...rest, path: filled });
    return data;
  }

  /** Send a request and read its response as JSON. It is repeated if it reads, or has a key. */
  async json<Data>(request: Request): Promise<Answer<Data>> {
    if (request.method !== "GET" && request.key === undefined) return this.once<Data>(request);
    return this.repeat((sent) => this.once<Data>(sent), request);
  }

  /** Repeat a request while the server does not respond. One that has never reached its server fails at once. */
  async repeat<Result>(send: (request: Request) => Promise<Result>, request: Request): Promise<Result> {
    const isRetryable = request.key === undefined ? isUnreachable : isRepeatable;
    let wasSent = false;
    return repeated(() => send(request), {
      seconds: this.retrySeconds,
      signal: request.signal,
      isRetryable: (error) => {
        wasSent ||= !(error instanceof ServerUnreachable) || error.wasSent;
        return isRetryable(error) && (wasSent || this.#reached.server);
      },
    });
  }

  /** Send a request once, and read its response as JSON; `data` is undefined for one without content. */
  async once<Data>(request: Request): Promise<Answer<Data>> {
    return this.#timed(request, async (response) => {
      if (response.status === 204) return { data: undefined as Data, headers: response.headers };
      const text = await response.text();
      if (!isJson(response)) throw this.#unexpected(request, response, text);
      return { data: parseJson(text) as Data, headers: response.headers };
    });
  }

  /** Send a request once, and read the bytes of its response. */
  async bytes(request: Request): Promise<Answer<Uint8Array<ArrayBuffer>>> {
    return this.#timed(request, async (response) => {
      return { data: new Uint8Array(await response.arrayBuffer()), headers: response.headers };
    });
  }

  /** Send a request once, and return its response when its headers are there. Reading it has no timeout. */
  async open(request: Request): Promise<Response> {
    return this.#timed(request, async (response) => response, true);
  }

  /** Send a request once, and read it with `read`. Times out, except for what is read later with `isOpen`. */
  async #timed<Result>(request: Request, read: (response: Response) => Promise<Result>, isOpen = false): Promise<Result> {
    const { signal } = request;
    signal?.throwIfAborted();
    const controller = new AbortController();
    const ending = isOpen ? eitherOf(signal, controller.signal) : undefined;
    const onAbort = () => controller.abort(signal!.reason);
    if (ending === undefined) signal?.addEventListener("abort", onAbort, { once: true });
    const seconds = this.#timeoutOf(request);
    const timer = after(seconds, () => controller.abort(new TimedOut(seconds)));
    try {
      const token = await this.#token(request, ending ?? controller.signal);
      // What cannot be sent at all is no fault of the connection, so these two are not in `#send`.
      const url = this.#urlOf(request);
      return await this.#send(request, url, this.#init(request, token, ending ?? controller.signal), read);
    } finally {
      clearTimeout(timer);
      if (!isOpen) signal?.removeEventListener("abort", onAbort);
    }
  }

  async #send<Result>(request: Request, url: string, init: RequestInit & { signal: AbortSignal }, read: (response: Response) => Promise<Result>): Promise<Result> {
    try {
      const response = await this.#fetch(url, init);
      this.#reached.server = true;
      if (!response.ok) throw await this.#errorOf(request, response);
      const result = await read(response);
      this.onResponse?.();
      return result;
    } catch (error) {
      request.signal?.throwIfAborted();
      const reason = this.#connectionError(request, error, init.signal);
      this.onResponse?.(reason);
      throw reason;
    }
  }

  #timeoutOf(request: Request): number {
    const seconds = this.#options.timeoutSeconds ?? RESPONSE_SECONDS;
    return request.timeoutSeconds ?? (request.wait ? Math.max(seconds, request.wait + POLL_MARGIN_SECONDS) : seconds);
  }

  #urlOf(request: Request): string {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(request.query ?? {})) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== undefined && one !== null) params.append(name, String(one));
      }
    }
    const query = params.toString();
    return `${this.url}${PREFIX}${request.path}${query && `?${query}`}`;
  }

  /** Return the present token. A function that cannot fetch one, or takes too long, fails as the connection does. */
  async #token(request: Request, signal: AbortSignal): Promise<string | undefined> {
    const { token } = this.#options;
    if (typeof token !== "function") return token;
    try {
      return await unlessAborted(Promise.resolve(token()), signal);
    } catch (error) {
      request.signal?.throwIfAborted();
      if (error instanceof TimedOut) throw new ServerUnreachable(`token: the function returned none within ${error.seconds} s`, false, { cause: error });
      throw this.#connectionError(request, error, signal);
    }
  }

  #init(request: Request, token: string | undefined, signal: AbortSignal): RequestInit & { signal: AbortSignal } {
    const headers: Record<string, string> = { ...this.#options.headers, ...request.headers };
    if (token !== undefined) headers["Authorization"] = `Bearer ${token}`;
    if (request.wait) headers["Prefer"] = `wait=${request.wait}`;
    if (request.key !== undefined) headers["Idempotency-Key"] = formatKey(request.key);
    const body = request.body === undefined ? request.content : toJson(request.body, "body");
    if (body !== undefined) headers["Content-Type"] = request.contentType ?? "application/json";
    checkHeaders(headers);
    // A redirect would turn other methods into GET.
    const redirect = request.method === "GET" ? "follow" : "manual";
    // With its cache, Chrome sends a PATCH of a task only after an open GET of the same URL, such as one that waits, has ended.
    return { method: request.method, headers, redirect, signal, cache: "no-store", ...(body !== undefined && { body }) };
  }

  async #errorOf(request: Request, response: Response): Promise<Error> {
    const text = await response.text();
    const body = jsonOf(text);
    const seconds = retryAfterOf(response.headers);
    const mediaType = (response.headers.get("Content-Type") ?? "").split(";")[0]!.trim().toLowerCase();
    const type = isObject(body) ? body["type"] : undefined;
    if (mediaType !== "application/problem+json" || typeof type !== "string" || !/^\/.*v1\/problems\//.test(type)) {
      return this.#unexpected(request, response, text);
    }
    return problemOf(response.status, body as Record<string, unknown>, seconds);
  }

  #unexpected(request: Request, response: Response, text: string): UnexpectedResponse {
    // Some programs answer with the headers of the request.
    const excerpt = text.split(/\s+/).join(" ").replace(/Bearer [^\s"'<]+/gi, "Bearer ***").slice(0, SHOWN_CHARACTERS);
    const isRefusal = REFUSALS.has(response.status) && isObject(jsonOf(text)) && text.includes('"detail"');
    const who = isRefusal
      ? "The application that hosts the server refused the request: check the token or the permissions"
      : "This is not a response of a zndraw-joblib server; a proxy in front of it probably sent it";
    const message = `${request.method} ${this.url}${PREFIX}${request.path} answered ${response.status}: ${JSON.stringify(excerpt)}. ${who}`;
    return new UnexpectedResponse(message, response.status, retryAfterOf(response.headers), isRefusal);
  }

  #connectionError(request: Request, error: unknown, signal: AbortSignal | undefined): unknown {
    if (error instanceof JoblibError) return error;
    const what = `${request.method} ${this.url}${PREFIX}${request.path}`;
    const reason: unknown = signal?.reason;
    if (reason instanceof TimedOut) return new ServerUnreachable(`${what}: ${reason.message}`, true, { cause: error });
    if (!(error instanceof TypeError)) return error;
    const { cause } = error;
    const wasSent = !NOT_SENT.has(String((cause as { code?: unknown } | undefined)?.code));
    return new ServerUnreachable(`${what}: ${cause === undefined ? error.message : describe(cause)}${this.#originHint()}`, wasSent, { cause: error });
  }

  /** In a page of another origin, say what else it may be: a browser does not tell pages about CORS. */
  #originHint(): string {
    const page = pageOrigin();
    if (page === undefined || new URL(this.url, baseOf(page)).origin === page) return "";
    return `. If the server runs, it may not allow pages of ${page}: its setting cors_origins names the origins`;
  }
}

type CallArguments<M extends Method, P extends keyof paths> =
  Partial<OperationOptions<M, P>> extends OperationOptions<M, P> ? [options?: OperationOptions<M, P>] : [options: OperationOptions<M, P>];

class TimedOut extends Error {
  constructor(readonly seconds: number) {
    super(`no response within ${seconds} s`);
  }
}

function pageOrigin(): string | undefined {
  return (globalThis as { location?: { origin: string } }).location?.origin;
}

/** Return the address that relative ones begin with; the origin of a page that is a file is the text `null`. */
function baseOf(page: string | undefined): string | undefined {
  return page !== undefined && /^https?:/.test(page) ? page : undefined;
}

/** Return an address without a slash at its end. Throws an error for one that no request can be sent to. */
function checkedUrl(url: string): string {
  const shown = JSON.stringify(url.replace(/\/\/[^@/]*@/, "//"));
  let parsed: URL;
  try {
    // In a page, an address may be that of a folder on its server.
    parsed = new URL(url, baseOf(pageOrigin()));
  } catch {
    throw new JoblibError(`url: ${shown} is not an address, such as http://127.0.0.1:8000`);
  }
  if (!/^https?:$/.test(parsed.protocol)) throw new JoblibError(`url: ${shown} has to begin with http:// or https://`);
  if (parsed.username !== "" || parsed.password !== "") throw new JoblibError(`url: ${shown} has a name or a password, which fetch refuses: pass a token`);
  return url.replace(/\/+$/, "");
}

/** Return a signal that is aborted with either, which leaves no listener on the first; undefined on older platforms. */
function eitherOf(signal: AbortSignal | undefined, own: AbortSignal): AbortSignal | undefined {
  return signal !== undefined && typeof AbortSignal.any === "function" ? AbortSignal.any([signal, own]) : undefined;
}

/** Return what a promise resolves to. Rejects with the reason of a signal once that is aborted. */
function unlessAborted<Value>(promise: Promise<Value>, signal: AbortSignal): Promise<Value> {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
    promise.then(resolve, reject);
  });
}

/** Return the error for the problem of a response, or of an item of a batch. */
export function problemOf(status: number, body: Record<string, unknown>, retryAfterSeconds = 0): ProblemError {
  const problem = { title: `HTTP ${status}`, type: "about:blank", ...body, status } as Problem & Record<string, unknown>;
  const id = problem.type.split("/v1/problems/").at(-1)!;
  const kind = (Object.hasOwn(PROBLEMS, id) ? PROBLEMS[id] : BY_STATUS[status]) ?? ProblemError;
  return new kind(problem, retryAfterSeconds);
}

/** Return a new idempotency key. */
export function newKey(): string {
  return randomId();
}

function formatKey(key: string): string {
  if (!/^[ -~]{1,255}$/.test(key)) throw new JoblibError(`idempotencyKey: ${JSON.stringify(key.slice(0, 99))} is not 1 to 255 printable ASCII characters`);
  return `"${key.replace(/(["\\])/g, "\\$1")}"`;
}

/** Throw an error for a header that cannot be sent. It does not show the value, which may be a token. */
function checkHeaders(headers: Record<string, string>): void {
  for (const [name, value] of Object.entries(headers)) {
    try {
      new Headers([[name, value]]);
    } catch {
      const reason = "its name or value has a line break or another character that HTTP does not allow";
      throw new JoblibError(`headers: ${JSON.stringify(name)} cannot be sent: ${reason}`);
    }
  }
}

/** Return a path with its parts filled in, each encoded. */
export function filledPath(path: string, parts: Record<string, unknown>): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(parts[name])));
}

/** Return how many seconds the server agreed to wait. */
export function appliedWait(headers: Headers): number {
  return Number(/^\s*wait\s*=\s*(\d+)/.exec(headers.get("Preference-Applied") ?? "")?.[1] ?? 0);
}

function retryAfterOf(headers: Headers): number {
  const text = headers.get("Retry-After") ?? "";
  const seconds = /^\s*\d+\s*$/.test(text) ? Number(text) : (Date.parse(text) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.min(Math.max(0, seconds), LONGEST_RETRY_AFTER_SECONDS) : 0;
}

function isJson(response: Response): boolean {
  return /^application\/json\b/i.test(response.headers.get("Content-Type") ?? "");
}

function jsonOf(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
