/**
 * Types of the Socket.IO events and of the event streams of zndraw-joblib. They belong beside rest.d.ts.
 * `make generate` writes this file; do not edit it.
 */
import type {
    EventKind,
    GroupResponse,
    LogPart,
    Problem,
    Progress,
    Resync,
    RoomSnapshot,
    StoredResult,
    StreamEvent,
    TaskResponse,
    TaskStatusEvent,
} from "./rest.js";

export type { TaskStatusEvent };

/** Sent to a room: one of its running tasks has reported its progress. */
export interface TaskProgress {
    id: string;
    name: string;
    room_id: string;
    attempt: number;
    progress: Progress;
}

/** Sent to a room: its list of jobs, or of their workers, has changed. */
export type JobsInvalidate = Record<string, never>;

/** Sent to a room: its list of providers has changed. */
export type ProvidersInvalidate = Record<string, never>;

/** Sent to a room: a provider request has a result or an error; repeat the request to get it. */
export interface ProviderResultReady {
    provider_name: string;
    request_hash: string;
}

/** Sent to the workers of a job: a task waits to be claimed. */
export interface TaskAvailable {
    job_name: string;
    room_id: string;
    task_id: string;
}

/** Sent to the workers of a provider: a request waits. `request_id` is the hash of `params`. */
export interface ProviderRequest {
    request_id: string;
    provider_name: string;
    params: string;
}

/** Sent by a front-end: subscribe to a room. */
export interface JoinRoom {
    room_id: string;
}

/** Sent by a front-end: unsubscribe from a room. */
export interface LeaveRoom {
    room_id: string;
}

/** Sent by a worker: subscribe to the tasks of a job. */
export interface JoinJobRoom {
    job_name: string;
    worker_id: string;
}

/** Sent by a worker: unsubscribe from the tasks of a job. */
export interface LeaveJobRoom {
    job_name: string;
    worker_id: string;
}

/** Sent by a worker: subscribe to the requests of a provider. */
export interface JoinProviderRoom {
    provider_name: string;
    worker_id: string;
}

/** Sent by a worker: unsubscribe from the requests of a provider. */
export interface LeaveProviderRoom {
    provider_name: string;
    worker_id: string;
}

/** A line of the results of a group: a task, and its result if it has completed. `stored`: the result is kept as bytes, read it at the task's `result`. */
export interface GroupResult {
    id: string;
    status: string;
    result: unknown;
    stored?: boolean;
    error?: string | null;
    error_code?: string | null;
}

/** The acknowledgement of a join or a leave: an empty object, or why it was refused. */
export type JoinAnswer = Problem | Record<string, never>;

/** The events that the server sends. */
export interface ServerToClientEvents {
    /** Sent to a room: one of its tasks has a new status. */
    task_status_event: (event: TaskStatusEvent) => void;
    /** Sent to a room: one of its running tasks has reported its progress. */
    task_progress: (event: TaskProgress) => void;
    /** Sent to a room: its list of jobs, or of their workers, has changed. */
    jobs_invalidate: (event: JobsInvalidate) => void;
    /** Sent to a room: its list of providers has changed. */
    providers_invalidate: (event: ProvidersInvalidate) => void;
    /** Sent to a room: a provider request has a result or an error; repeat the request to get it. */
    provider_result_ready: (event: ProviderResultReady) => void;
    /** Sent to the workers of a job: a task waits to be claimed. */
    task_available: (event: TaskAvailable) => void;
    /** Sent to the workers of a provider: a request waits. `request_id` is the hash of `params`. */
    provider_request: (event: ProviderRequest) => void;
    /** The server refused to let the client join a room. */
    problem: (problem: Problem) => void;
}

/** The events that a client sends. */
export interface ClientToServerEvents {
    /** Sent by a front-end: subscribe to a room. */
    join_room: (event: JoinRoom, acknowledge: (answer: JoinAnswer) => void) => void;
    /** Sent by a front-end: unsubscribe from a room. */
    leave_room: (event: LeaveRoom, acknowledge: (answer: JoinAnswer) => void) => void;
    /** Sent by a worker: subscribe to the tasks of a job. */
    join_job_room: (event: JoinJobRoom, acknowledge: (answer: JoinAnswer) => void) => void;
    /** Sent by a worker: unsubscribe from the tasks of a job. */
    leave_job_room: (event: LeaveJobRoom, acknowledge: (answer: JoinAnswer) => void) => void;
    /** Sent by a worker: subscribe to the requests of a provider. */
    join_provider_room: (event: JoinProviderRoom, acknowledge: (answer: JoinAnswer) => void) => void;
    /** Sent by a worker: unsubscribe from the requests of a provider. */
    leave_provider_room: (event: LeaveProviderRoom, acknowledge: (answer: JoinAnswer) => void) => void;
}

/** An object in which the fields that would be null are omitted. */
export type WithoutNulls<Fields> = {
    [Name in keyof Fields as null extends Fields[Name] ? never : Name]: Fields[Name];
} & {
    [Name in keyof Fields as null extends Fields[Name] ? Name : never]?: NonNullable<Fields[Name]>;
};

/** The `data` of the events of a task, by their `kind`. */
export interface StreamData {
    status: WithoutNulls<TaskStatusEvent>;
    progress: Pick<TaskProgress, "attempt" | "progress">;
    log: LogPart & { attempt: number };
    result: WithoutNulls<StoredResult>;
}

/** An event of a task: `kind` determines the type of `data`. */
export type TaskStreamEvent = {
    [Kind in EventKind]: Omit<StreamEvent, "kind" | "data"> & { kind: Kind; data: StreamData[Kind] };
}[EventKind];

type EventsByKind = { [Kind in EventKind]: Extract<TaskStreamEvent, { kind: Kind }> };

/** The Server-Sent Events of `GET /rooms/{room_id}/events` by name, with their data as JSON. */
export interface RoomStream extends EventsByKind {
    snapshot: RoomSnapshot;
    resync: Resync;
}

/** The Server-Sent Events of `GET /tasks/{task_id}/events` by name, with their data as JSON. */
export interface TaskStream extends EventsByKind {
    snapshot: TaskResponse;
    resync: Resync;
    end: { next: number };
}

/** The Server-Sent Events of `GET /groups/{group_id}/events` by name, with their data as JSON. */
export interface GroupStream {
    snapshot: GroupResponse;
    counts: Pick<GroupResponse, "sealed" | "total" | "counts" | "progress">;
    end: GroupResponse;
}

/** An event as a stream sends it. To continue, send the last `id` as `Last-Event-ID`; `resync` has none. */
export type SentEvent<Stream extends RoomStream | TaskStream | GroupStream> = {
    [Name in keyof Stream]: { event: Name; data: Stream[Name]; id?: string };
}[keyof Stream];
