"""What to do about each problem, for the pages that explain them."""

from zndraw_joblib.wire import problems as p
from zndraw_joblib.wire.problems import ProblemException

_AGAIN = "Repeat the request after `Retry-After` seconds, with the same `Idempotency-Key` if it has one."
_ERROR_CODE = "This problem is the `error_code` of a task, never a response."

REMEDIES: dict[type[ProblemException], str] = {
    p.InvalidRoomId: "Use `@global`, or up to 128 printable characters without `@`, `:` and `/`.",
    p.InvalidCategory: "Use a category of the setting, or ask the operator to add yours to it.",
    p.InvalidIdempotencyKey: "Send the header once, with a new UUID for each request that is not a repeat.",
    p.Unauthorized: "Send `Authorization: Bearer <token>`, with a token of `zndraw-joblib token create`. "
    "In a host's app, sign in.",
    p.Forbidden: "Use the identity that owns the task, worker or provider, or that of a superuser.",
    p.NotFound: "Check the path: the API begins with `/v1/joblib`, after a host's prefix (if any).",
    p.JobNotFound: "Check the full name `room:category:name` and the room, and that a worker serves the job: "
    "`zndraw-joblib jobs`.",
    p.WorkerNotFound: "Register the worker and its jobs again. The SDK does so by itself.",
    p.ProviderNotFound: "Check the full name and the room, and that the provider's worker runs.",
    p.TaskNotFound: "Check the id. The server deletes ended tasks after `keep_finished_days`, if it is set.",
    p.ResultNotFound: "Wait until the task has completed: `GET /tasks/{task_id}` with `Prefer: wait=N`.",
    p.MethodNotAllowed: "Use a method of the header `Allow`.",
    p.UploadStalled: "Upload again over a faster connection that does not pause.",
    p.Conflict: "Read the current state and decide again; `detail` has the reason.",
    p.SchemaConflict: "Register the schema under another name, or stop the workers of the old schema first.",
    p.RequestInProgress: _AGAIN,
    p.InvalidTaskTransition: "Read the task: its status has changed, or this change does not exist.",
    p.StaleReport: "Stop working on the task: it was released, cancelled, or claimed by another worker.",
    p.WorkerLost: f"Read the worker's log. To retry such tasks, set `max_attempts` of the job. {_ERROR_CODE}",
    p.StartTimeout: f"Give the worker fewer tasks at once, or raise `start_timeout_seconds`. {_ERROR_CODE}",
    p.RunTimeout: f"Raise `timeout_seconds` of the job, or make its tasks smaller. {_ERROR_CODE}",
    p.TaskExpired: f"Start more workers, or raise `expires_in_seconds`. {_ERROR_CODE}",
    p.InternalTimeout: f"Raise the setting, or make the tasks smaller. {_ERROR_CODE}",
    p.DispatchFailed: f"Check that the broker (Redis) runs; then retry the task. {_ERROR_CODE}",
    p.Released: f"No action is needed: a worker claims the task again. {_ERROR_CODE}",
    p.Retried: f"No action is needed: a worker claims the task again. {_ERROR_CODE}",
    p.FailedByOperator: f"The task's `error` has the operator's reason. {_ERROR_CODE}",
    p.ResultNotSerializable: f"Return JSON values, arrays or tables, or bytes from the job. {_ERROR_CODE}",
    p.NoWorkersAvailable: "Start a worker of the job, or submit the task later.",
    p.StaleResult: "Drop the result: no client waits for it.",
    p.ResultExpired: "Submit the task again, or raise the setting.",
    p.ContentTooLarge: "Send less in one request: upload large results with `PUT /tasks/{task_id}/result`.",
    p.RangeNotSatisfiable: "Request a range inside the size that `Content-Range` has.",
    p.InvalidRequest: "Correct the fields that `errors` names.",
    p.InvalidPayload: "Correct the payload at the pointers that `errors` names.",
    p.InvalidSchema: "Correct the schema: use no references outside it, and no lookaround in patterns.",
    p.IdempotencyKeyReused: "Use a new key for another request.",
    p.Locked: "Wait until the room is unlocked.",
    p.TooManyRequests: "Send fewer requests at once, or close streams that you do not read.",
    p.RequestRefused: "Read `detail`: it has the reason of the application.",
    p.InternalServerError: "Give the operator the `X-Request-ID` of the response: the log has the cause.",
    p.ServiceUnavailable: _AGAIN,
    p.InternalJobNotConfigured: "Start the server with the job's module in `internal_extensions`.",
    p.ProviderNotConnected: "Start the provider's worker, or repeat the request later.",
    p.ProviderFailed: "Read `detail`: it names the limit that the result exceeds.",
    p.ProviderExecutionFailed: "Correct the parameters, or read the log of the provider's worker.",
    p.ProviderTimeout: "Repeat the request: the provider continues to work on it.",
    p.ResultStoreFull: "Raise the setting or `max_share_per_user`, or let results expire sooner.",
}
