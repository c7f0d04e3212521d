/**
 * A class for each problem of the server. `make generate` writes this file; do not edit it.
 */
import { ProblemError, type ProblemClass } from "./errors.js";

/** 400: The room id has invalid characters. */
export class InvalidRoomId extends ProblemError {
    override readonly name: string = "InvalidRoomId";
}

/** 400: The server does not allow the job's category (setting `allowed_categories`). */
export class InvalidCategory extends ProblemError {
    override readonly name: string = "InvalidCategory";
}

/** 400: The header `Idempotency-Key` is not a quoted string or a token of 1 to 255 characters. */
export class InvalidIdempotencyKey extends ProblemError {
    override readonly name: string = "InvalidIdempotencyKey";
}

/** 401: The request has no identity: its token is missing, unknown or revoked. */
export class Unauthorized extends ProblemError {
    override readonly name: string = "Unauthorized";
}

/** 403: The identity is known, but may not do this. */
export class Forbidden extends ProblemError {
    override readonly name: string = "Forbidden";
}

/** 404: There is no resource at this URL. */
export class NotFound extends ProblemError {
    override readonly name: string = "NotFound";
}

/** 404: The room can use no active job of this name. */
export class JobNotFound extends NotFound {
    override readonly name: string = "JobNotFound";
}

/** 404: The room has no schedule of this name. */
export class ScheduleNotFound extends NotFound {
    override readonly name: string = "ScheduleNotFound";
}

/** 404: There is no group with this id, or it is of another room than the task. */
export class GroupNotFound extends NotFound {
    override readonly name: string = "GroupNotFound";
}

/** 404: The room has no webhook of this name. */
export class WebhookNotFound extends NotFound {
    override readonly name: string = "WebhookNotFound";
}

/** 404: The room has no delivery of this number: deliveries are kept for 30 days. */
export class DeliveryNotFound extends NotFound {
    override readonly name: string = "DeliveryNotFound";
}

/** 404: There is no limit of this name: an operator defines limits that jobs share. */
export class LimitNotFound extends NotFound {
    override readonly name: string = "LimitNotFound";
}

/** 404: The worker is unknown: it disconnected, was removed without heartbeats, or never registered. */
export class WorkerNotFound extends NotFound {
    override readonly name: string = "WorkerNotFound";
}

/** 404: There is no such provider, or another room owns it. */
export class ProviderNotFound extends NotFound {
    override readonly name: string = "ProviderNotFound";
}

/** 404: No task has this id. */
export class TaskNotFound extends NotFound {
    override readonly name: string = "TaskNotFound";
}

/** 404: The task has no result: it has not ended, or ended without success. */
export class ResultNotFound extends NotFound {
    override readonly name: string = "ResultNotFound";
}

/** 405: The URL does not support this method. */
export class MethodNotAllowed extends ProblemError {
    override readonly name: string = "MethodNotAllowed";
}

/** 408: The body did not arrive in time (settings `request_timeout_seconds`, `upload_timeout_seconds`). */
export class UploadStalled extends ProblemError {
    override readonly name: string = "UploadStalled";
}

/** 409: The request conflicts with the current state. */
export class Conflict extends ProblemError {
    override readonly name: string = "Conflict";
}

/** 409: The job has another schema, and the new one does not accept all that it accepts. `differences` lists the first JSON pointers at which they differ, with the `old` and the `new` value. */
export class SchemaConflict extends Conflict {
    override readonly name: string = "SchemaConflict";
}

/** 409: The group is sealed: no more tasks can be added. Create another group. */
export class GroupSealed extends Conflict {
    override readonly name: string = "GroupSealed";
}

/** 409: A request with this `Idempotency-Key` is being processed; repeat yours after `Retry-After` seconds. */
export class RequestInProgress extends Conflict {
    override readonly name: string = "RequestInProgress";
}

/** 409: No worker serves the job, and it accepts no task without one (`without_workers`, policy or setting). */
export class NoWorkersAvailable extends Conflict {
    override readonly name: string = "NoWorkersAvailable";
}

/** 409: Another task holds the unique key; `task_id` is its id. */
export class DuplicateTask extends Conflict {
    override readonly name: string = "DuplicateTask";
}

/** 409: The task cannot change from its status (`current_status`) to the requested one. */
export class InvalidTaskTransition extends Conflict {
    override readonly name: string = "InvalidTaskTransition";
}

/** 409: The reporting worker or attempt does not hold the task. `reason` says why. */
export class StaleReport extends InvalidTaskTransition {
    override readonly name: string = "StaleReport";
}

/** 409: The worker that held the task disconnected, or sent no heartbeat for too long. */
export class WorkerLost extends Conflict {
    override readonly name: string = "WorkerLost";
}

/** 409: The task was claimed and not started in time (`start_timeout_seconds`); it is in its queue again. */
export class StartTimeout extends Conflict {
    override readonly name: string = "StartTimeout";
}

/** 409: The attempt ran longer than the job allows (`timeout_seconds`). */
export class RunTimeout extends Conflict {
    override readonly name: string = "RunTimeout";
}

/** 409: No worker claimed the task in time (`expires_in_seconds`). */
export class TaskExpired extends Conflict {
    override readonly name: string = "TaskExpired";
}

/** 409: A task or group that the task waited for has not completed; its `error` names it. */
export class PredecessorFailed extends Conflict {
    override readonly name: string = "PredecessorFailed";
}

/** 409: A predecessor's result does not fit into the payload: it has no such part, or the schema refuses it. */
export class PredecessorResultInvalid extends Conflict {
    override readonly name: string = "PredecessorResultInvalid";
}

/** 409: The internal task exceeded its time limit (setting `internal_task_timeout_seconds`). */
export class InternalTimeout extends Conflict {
    override readonly name: string = "InternalTimeout";
}

/** 409: The broker of internal jobs did not accept the task. */
export class DispatchFailed extends Conflict {
    override readonly name: string = "DispatchFailed";
}

/** 409: Its worker or an operator put the task back into its queue; this counts as no failure. */
export class Released extends Conflict {
    override readonly name: string = "Released";
}

/** 409: A client put the failed or cancelled task into its queue again. */
export class Retried extends Conflict {
    override readonly name: string = "Retried";
}

/** 409: An operator failed the task. */
export class FailedByOperator extends Conflict {
    override readonly name: string = "FailedByOperator";
}

/** 409: The job returned a value that cannot be encoded; the error names its place in the value. */
export class ResultNotSerializable extends Conflict {
    override readonly name: string = "ResultNotSerializable";
}

/** 409: The provider was registered again after this request, so no client waits for the result. */
export class StaleResult extends Conflict {
    override readonly name: string = "StaleResult";
}

/** 410: The stored result of the task is not kept any longer (setting `task_result_days`). */
export class ResultExpired extends ProblemError {
    override readonly name: string = "ResultExpired";
}

/** 413: The body, or a part of it, is larger than the server accepts, or has more tasks than ever fit. */
export class ContentTooLarge extends ProblemError {
    override readonly name: string = "ContentTooLarge";
}

/** 416: The header `Range` names bytes behind the end of the content. */
export class RangeNotSatisfiable extends ProblemError {
    override readonly name: string = "RangeNotSatisfiable";
}

/** 422: The request is invalid. `errors` lists every error with its location. */
export class InvalidRequest extends ProblemError {
    override readonly name: string = "InvalidRequest";
}

/** 422: The payload does not match the job's schema. `errors` lists every error with its JSON pointer. */
export class InvalidPayload extends InvalidRequest {
    override readonly name: string = "InvalidPayload";
}

/** 422: The job's schema is not a JSON Schema that this server supports. */
export class InvalidSchema extends InvalidRequest {
    override readonly name: string = "InvalidSchema";
}

/** 422: The caller has sent the same `Idempotency-Key` with another method, path, query or body. */
export class IdempotencyKeyReused extends InvalidRequest {
    override readonly name: string = "IdempotencyKeyReused";
}

/** 423: The room is locked: it accepts no changes at the moment. */
export class Locked extends ProblemError {
    override readonly name: string = "Locked";
}

/** 429: The caller sends too many requests, or has used its share; try again after `Retry-After` seconds. */
export class TooManyRequests extends ProblemError {
    override readonly name: string = "TooManyRequests";
}

/** 400: The application that hosts the server refused the request; `status` and `detail` give the reason. */
export class RequestRefused extends ProblemError {
    override readonly name: string = "RequestRefused";
}

/** 500: The server failed unexpectedly; its log has the cause. */
export class InternalServerError extends ProblemError {
    override readonly name: string = "InternalServerError";
}

/** 501: The queue has no tokens of its own: the application that hosts it identifies the users. */
export class NoTokens extends ProblemError {
    override readonly name: string = "NoTokens";
}

/** 503: The server cannot do this at the moment; try again after `Retry-After` seconds. */
export class ServiceUnavailable extends ProblemError {
    override readonly name: string = "ServiceUnavailable";
}

/** 503: The job is internal, and this server has no executor for it. */
export class InternalJobNotConfigured extends ServiceUnavailable {
    override readonly name: string = "InternalJobNotConfigured";
}

/** 503: No worker of this provider is connected; it may come back. */
export class ProviderNotConnected extends ServiceUnavailable {
    override readonly name: string = "ProviderNotConnected";
}

/** 502: The server could not use the result of the provider. `error` is a name, `detail` the text. */
export class ProviderFailed extends ProblemError {
    override readonly name: string = "ProviderFailed";
}

/** 400: The provider raised an exception. `error` is its name, `detail` its text. */
export class ProviderExecutionFailed extends ProviderFailed {
    override readonly name: string = "ProviderExecutionFailed";
}

/** 504: The provider has no result yet, and continues; repeat the request after `Retry-After` seconds. */
export class ProviderTimeout extends ProblemError {
    override readonly name: string = "ProviderTimeout";
}

/** 507: Stored results have reached the limit for all or for a user (setting `max_stored_result_bytes`). */
export class ResultStoreFull extends ProblemError {
    override readonly name: string = "ResultStoreFull";
}

/** The classes by the last part of the `type` of their problem. */
export const PROBLEMS: Readonly<Record<string, ProblemClass>> = {
    "invalid-room-id": InvalidRoomId,
    "invalid-category": InvalidCategory,
    "invalid-idempotency-key": InvalidIdempotencyKey,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "not-found": NotFound,
    "job-not-found": JobNotFound,
    "schedule-not-found": ScheduleNotFound,
    "group-not-found": GroupNotFound,
    "webhook-not-found": WebhookNotFound,
    "delivery-not-found": DeliveryNotFound,
    "limit-not-found": LimitNotFound,
    "worker-not-found": WorkerNotFound,
    "provider-not-found": ProviderNotFound,
    "task-not-found": TaskNotFound,
    "result-not-found": ResultNotFound,
    "method-not-allowed": MethodNotAllowed,
    "upload-stalled": UploadStalled,
    "conflict": Conflict,
    "schema-conflict": SchemaConflict,
    "group-sealed": GroupSealed,
    "request-in-progress": RequestInProgress,
    "no-workers-available": NoWorkersAvailable,
    "duplicate-task": DuplicateTask,
    "invalid-task-transition": InvalidTaskTransition,
    "stale-report": StaleReport,
    "worker-lost": WorkerLost,
    "start-timeout": StartTimeout,
    "run-timeout": RunTimeout,
    "task-expired": TaskExpired,
    "predecessor-failed": PredecessorFailed,
    "predecessor-result-invalid": PredecessorResultInvalid,
    "internal-timeout": InternalTimeout,
    "dispatch-failed": DispatchFailed,
    "released": Released,
    "retried": Retried,
    "failed-by-operator": FailedByOperator,
    "result-not-serializable": ResultNotSerializable,
    "stale-result": StaleResult,
    "result-expired": ResultExpired,
    "content-too-large": ContentTooLarge,
    "range-not-satisfiable": RangeNotSatisfiable,
    "invalid-request": InvalidRequest,
    "invalid-payload": InvalidPayload,
    "invalid-schema": InvalidSchema,
    "idempotency-key-reused": IdempotencyKeyReused,
    "locked": Locked,
    "too-many-requests": TooManyRequests,
    "request-refused": RequestRefused,
    "internal-server-error": InternalServerError,
    "no-tokens": NoTokens,
    "service-unavailable": ServiceUnavailable,
    "internal-job-not-configured": InternalJobNotConfigured,
    "provider-not-connected": ProviderNotConnected,
    "provider-failed": ProviderFailed,
    "provider-execution-failed": ProviderExecutionFailed,
    "provider-timeout": ProviderTimeout,
    "result-store-full": ResultStoreFull,
};

/** The classes of errors of hosts, by their status. */
export const BY_STATUS: Readonly<Record<number, ProblemClass>> = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    408: UploadStalled,
    409: Conflict,
    413: ContentTooLarge,
    416: RangeNotSatisfiable,
    422: InvalidRequest,
    423: Locked,
    429: TooManyRequests,
    500: InternalServerError,
    502: ProviderFailed,
    503: ServiceUnavailable,
    504: ProviderTimeout,
    507: ResultStoreFull,
};
