/**
 * Types of the REST API of zndraw-joblib. `make generate` writes this file; do not edit it.
 */

export interface paths {
    "/v1/joblib/tasks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Search tasks
         * @description Search tasks, newest first or `oldest_first`; callers that are no superusers name readable rooms.
         *
         *     A search that reads many tasks to find few returns early: read on with `cursor`, the `next` of the
         *     response, while that is not null.
         */
        get: operations["searchTasks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/counts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Count tasks
         * @description Return how many tasks have each status; callers that are no superusers name rooms.
         *
         *     With `tag`, `parent` or `root`, count at most the newest 10,000 of these tasks.
         */
        get: operations["countTasks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/tags": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List tags
         * @description Return up to 50 tags that tasks have; callers that are no superusers name rooms.
         */
        get: operations["listTags"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/failures": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Group failures
         * @description Group the newest failed tasks that match a filter by job, error code and exception.
         *
         *     The status of the filter is not used. Callers that are no superusers name rooms that they may read.
         */
        get: operations["groupFailures"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/tasks/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Submit task
         * @description Submit a task of a job. The payload must fit the job's schema.
         */
        post: operations["submitTask"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/claim": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Claim task
         * @description Claim the oldest pending tasks of the worker's jobs; with ``Prefer: wait=N``, wait for the first.
         *
         *     Jobs of rooms to which the caller may no longer write are left out; if no others are left, the response
         *     is the refusal of the room.
         */
        post: operations["claimTask"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get task
         * @description Return a task; with ``Prefer: wait=N``, wait for its end.
         */
        get: operations["getTask"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        /**
         * Update task
         * @description Report on a task, or cancel it. A repeated report changes nothing.
         */
        patch: operations["updateTask"];
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/history": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get task history
         * @description List all transitions of a task, and the details of its last 20 attempts, oldest first.
         */
        get: operations["getTaskHistory"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/log": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get task log
         * @description Return lines of the log of an attempt, by default the current or last one, oldest first.
         *
         *     The lines after the number `after`: at most `limit`, and about 1 MiB.
         */
        get: operations["getTaskLog"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/explain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Explain task
         * @description Explain why a task is pending, or which worker holds it; the most important reason first.
         */
        get: operations["explainTask"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/release": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Release task
         * @description Put a held task back into its queue without counting a failure. Its worker or a superuser may do so.
         */
        post: operations["releaseTask"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/retry": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Retry task
         * @description Put a failed or cancelled task into its queue again.
         *
         *     Its submitter, who must be able to write to its room as for a submit, or a superuser may do so.
         */
        post: operations["retryTask"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/run-now": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Run task now
         * @description Put a task with a delay, a `run_at` or a pause before its next attempt into its queue now.
         *
         *     A task that is in its queue already stays there. Its submitter, who must be able to write to its room as
         *     for a submit, or a superuser may do so.
         */
        post: operations["runTaskNow"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/fail": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Fail task
         * @description Fail a task that has not ended, also while a worker holds it. Superusers only.
         */
        post: operations["failTask"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/tasks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List tasks
         * @description List a room's tasks, newest first.
         *
         *     With `tag`, `parent` or `root`, `total` is at most 10,000. Of one status, or with several of these, the
         *     newest 10,000 tasks are looked at; `GET /tasks` reads all of them, in parts.
         */
        get: operations["listTasks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/submit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Submit tasks
         * @description Submit up to 1,000 tasks; the response has a result or a problem for each, in order.
         *
         *     A body with a malformed item is refused as a whole. With `atomic` or `group`, all are submitted or none.
         */
        post: operations["submitTasks"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/report": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Report tasks
         * @description Report on up to 1,000 tasks; the response has a result or a problem for each, in order.
         *
         *     A body with a malformed item is refused as a whole. The payloads and results in the response have at most
         *     8 MiB in all; the result of an item beyond has only its status and id.
         */
        post: operations["reportTasks"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/workers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List workers
         * @description List all workers, newest first; for a caller with rooms those of jobs that these rooms list.
         */
        get: operations["listWorkers"];
        put?: never;
        /**
         * Create worker
         * @description Create a worker that belongs to the caller. It must send heartbeats.
         */
        post: operations["createWorker"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/workers/{worker_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get worker
         * @description Return a worker with its current tasks. Its owner or a superuser may do so.
         */
        get: operations["getWorker"];
        put?: never;
        post?: never;
        /**
         * Remove worker
         * @description Remove a worker: its tasks follow their retry policy; jobs without workers are soft-deleted.
         */
        delete: operations["removeWorker"];
        options?: never;
        head?: never;
        /**
         * Send heartbeat
         * @description Record a worker's heartbeat; return a verdict on each task that it names. Only its owner may do so.
         *
         *     Tasks of jobs in rooms to which the owner may no longer write are lost.
         */
        patch: operations["sendHeartbeat"];
        trace?: never;
    };
    "/v1/joblib/workers/{worker_id}/drain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Drain worker
         * @description Ask a worker to stop claiming, finish its tasks and leave. Its owner or a superuser may do so.
         */
        post: operations["drainWorker"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/workers/{worker_id}/jobs/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Remove job from worker
         * @description Remove one job from a worker. Its tasks of that job continue.
         */
        delete: operations["removeJobFromWorker"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/workers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List room workers
         * @description List the workers of the jobs that are visible in a room.
         */
        get: operations["listRoomWorkers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/worker-tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Create worker token
         * @description Issue a short-lived token of workers, for these jobs in these rooms. Operators of the rooms may do so.
         *
         *     A repeated request issues another token. The text of the token is only in this response.
         */
        post: operations["createWorkerToken"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/jobs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List jobs
         * @description List the jobs that are visible in a room: its own and those of the reserved rooms.
         */
        get: operations["listJobs"];
        /**
         * Register job
         * @description Register a job and the worker that serves it.
         *
         *     In ``@global`` only superusers may do so, and workers of a role with this room.
         */
        put: operations["registerJob"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/jobs/{name}/tasks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List job tasks
         * @description List a room's tasks of one job, newest first, also of a soft-deleted job.
         *
         *     With `tag`, the newest 10,000 tasks of the room with this tag are looked at.
         */
        get: operations["listJobTasks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/jobs/{name}/pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Pause job
         * @description Stop claims of a job, with `until` for a time. Claimed and running tasks continue. Superusers only.
         */
        post: operations["pauseJob"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/jobs/{name}/resume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Resume job
         * @description Allow claims of a paused job again. Superusers only.
         */
        post: operations["resumeJob"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/jobs/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get job
         * @description Return an active job.
         */
        get: operations["getJob"];
        /**
         * Put job
         * @description Register a job without a worker, or change its schema and policy. Superusers only.
         *
         *     Its schema changes only while no worker serves it and no task of it is pending.
         */
        put: operations["putJob"];
        post?: never;
        /**
         * Delete job
         * @description Forget a job that no worker serves and of which no task is pending. Superusers only.
         *
         *     Its tasks stay readable, and a registration restores it.
         */
        delete: operations["deleteJob"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/groups": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List groups
         * @description List groups, newest first, without their failures; callers that are no superusers name a room.
         */
        get: operations["listGroups"];
        put?: never;
        /**
         * Create group
         * @description Create a group in a room to which the caller may write. Submit tasks with its id as `group`.
         */
        post: operations["createGroup"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/groups/{group_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get group
         * @description Return a group with its counts and first failures; with ``Prefer: wait=N``, wait for its end.
         */
        get: operations["getGroup"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        /**
         * Update group
         * @description Seal a group of a room to which the caller may write: no more tasks can be added.
         *
         *     It ends when all its tasks have ended, so one without tasks ends at once.
         */
        patch: operations["updateGroup"];
        trace?: never;
    };
    "/v1/joblib/groups/{group_id}/results": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Read group results
         * @description Stream the tasks of a group with their results, a line of JSON for each, as they are now.
         *
         *     The worker that has the task of `on_end` needs no right to read the room.
         */
        get: operations["readGroupResults"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/schedules/{schedule}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get schedule
         * @description Return a schedule; with ``?next=5``, also its next five due times.
         */
        get: operations["getSchedule"];
        /**
         * Put schedule
         * @description Create or replace a schedule of a job. Its tasks are submitted as the caller's.
         *
         *     With the same times it keeps its next due time. Only superusers may do so in reserved rooms.
         */
        put: operations["putSchedule"];
        post?: never;
        /**
         * Delete schedule
         * @description Delete a schedule. Its tasks stay. Only superusers may do so in reserved rooms.
         */
        delete: operations["deleteSchedule"];
        options?: never;
        head?: never;
        /**
         * Update schedule
         * @description Pause or resume a schedule. What was due meanwhile follows its `catch_up`.
         *
         *     Only superusers may do so in reserved rooms.
         */
        patch: operations["updateSchedule"];
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/schedules": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List schedules
         * @description List the schedules of a room, by name.
         */
        get: operations["listSchedules"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/schedules/{schedule}/run": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Run schedule
         * @description Submit a task of a schedule now, as the caller's, also while the schedule is paused.
         */
        post: operations["runSchedule"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/schedules": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List all schedules
         * @description List the schedules of all rooms by room and name; other callers name a room that they may read.
         */
        get: operations["listAllSchedules"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/webhooks/{webhook}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get webhook
         * @description Return a webhook, without its secret.
         */
        get: operations["getWebhook"];
        /**
         * Put webhook
         * @description Create or replace a webhook: it gets the events of all tasks of the room that happen from then on.
         *
         *     No answer has a secret. Only superusers may do so in reserved rooms.
         */
        put: operations["putWebhook"];
        post?: never;
        /**
         * Delete webhook
         * @description Delete a webhook. What waits for it is not sent; its deliveries stay in the list.
         */
        delete: operations["deleteWebhook"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/webhooks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List webhooks
         * @description List the webhooks of a room, by name.
         */
        get: operations["listWebhooks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/webhooks/{webhook}/test": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Test webhook
         * @description Send a `webhook.test` event, at once also while deliveries fail; read the delivery for the outcome.
         */
        post: operations["testWebhook"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/deliveries": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List deliveries
         * @description List the deliveries to the webhooks of a room and of its tasks, newest first, of 30 days.
         */
        get: operations["listDeliveries"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/deliveries/{delivery}/repeat": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Repeat delivery
         * @description Send the event of a delivery again, with the same `webhook-id`. Return the new delivery.
         */
        post: operations["repeatDelivery"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/limits/{limit}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get limit
         * @description Return a limit that jobs share. Superusers only.
         */
        get: operations["getLimit"];
        /**
         * Put limit
         * @description Define a limit that jobs share by its name, for all claims from now on. Superusers only.
         */
        put: operations["putLimit"];
        post?: never;
        /**
         * Delete limit
         * @description Delete a limit that no job has. Superusers only.
         */
        delete: operations["deleteLimit"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/limits": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List limits
         * @description List the limits that jobs share, by name. Superusers only.
         */
        get: operations["listLimits"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Follow task
         * @description Return a task and what happens to it: a stream with ``Accept: text/event-stream``, else JSON.
         *
         *     As JSON it is what has happened since ``after``; with ``Prefer: wait=N``, wait for the next event.
         */
        get: operations["followTask"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Follow room
         * @description Return the newest tasks of a room and what happens to its tasks, as the events of a task.
         */
        get: operations["followRoom"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/groups/{group_id}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Follow group
         * @description Return a group and how it changes: a stream with ``Accept: text/event-stream``, else JSON.
         *
         *     As JSON it is the group, unless its state is that of ``after``; with ``Prefer: wait=N``, wait for another.
         */
        get: operations["followGroup"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/events/token": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Create task stream token
         * @description Return a token that reads the events of a task for some minutes, as ``?token=…`` in its URL.
         */
        post: operations["createTaskStreamToken"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/events/token": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Create room stream token
         * @description Return a token that reads the events of a room for some minutes, as ``?token=…`` in its URL.
         */
        post: operations["createRoomStreamToken"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/groups/{group_id}/events/token": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Create group stream token
         * @description Return a token that reads the events of a group for some minutes, as ``?token=…`` in its URL.
         */
        post: operations["createGroupStreamToken"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/providers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List providers
         * @description List the providers that are visible in a room: its own and those of ``@global`` and ``@internal``.
         *
         *     With `filebrowser_require_superuser`, only superusers see the file systems of ``@internal``.
         */
        get: operations["listProviders"];
        /**
         * Register provider
         * @description Register a worker as the provider of a data source; in ``@global`` only a superuser may do so.
         *
         *     Providers of ``@internal`` are registered by the server's own code.
         */
        put: operations["registerProvider"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/providers/{name}/info": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get provider
         * @description Return a provider.
         */
        get: operations["getProvider"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/providers/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Read provider
         * @description Send a request to a provider. Its parameters are the query parameters, which may be repeated.
         *
         *     With ``Prefer: wait=N``, wait N seconds for the result, else `provider_long_poll_default_seconds`.
         */
        get: operations["readProvider"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/providers/{provider_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Remove provider
         * @description Remove a provider; with ``worker_id`` only that worker's registration.
         */
        delete: operations["removeProvider"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/providers/requests/claim": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Claim provider request
         * @description Claim the oldest request of the worker's providers; with ``Prefer: wait=N``, wait for one.
         */
        post: operations["claimProviderRequest"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/providers/{provider_id}/results": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Upload provider result
         * @description Upload the result of a provider request; with ``X-Result-Status: error``, its error.
         *
         *     An error that is a problem (RFC 9457) is stored like a result: readers get it with its status. Other
         *     errors reach only the callers that wait, as `provider-execution-failed`.
         *     ``X-Request-Hash`` is the request's id. ``X-Worker-ID``, if given, must be the provider's worker.
         */
        post: operations["uploadProviderResult"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/{task_id}/result": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Read task result
         * @description Return the result of a task: its JSON, or the bytes that were uploaded.
         *
         *     ``Range``, ``If-Range`` and ``If-None-Match`` are supported. The worker that has the `successor` needs no
         *     right to read the room; the header ``Successor`` repeats it, because an older server ignores it.
         */
        get: operations["readTaskResult"];
        /**
         * Upload task result
         * @description Store the body as the result of a held task, in place of its former result; then report completion.
         *
         *     The ``Content-Type`` is kept. The attempt has to hold the task before and after the upload. A repeated
         *     upload replaces the first.
         */
        put: operations["uploadTaskResult"];
        post?: never;
        delete?: never;
        options?: never;
        /**
         * Head task result
         * @description Return the headers of the result of a task.
         */
        head: operations["headTaskResult"];
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/admin/sweeper": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get sweeper
         * @description Return the mode and the last cycles, newest first, of the sweeper of the server that responds.
         *
         *     `servers` and `history` have all servers and the last cycles of their sweepers.
         */
        get: operations["getSweeper"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        /**
         * Update sweeper
         * @description Change the mode of the sweepers of all servers, from their next cycle on.
         */
        patch: operations["updateSweeper"];
        trace?: never;
    };
    "/v1/joblib/admin/settings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get settings
         * @description Return the settings in force of the server that responds, without secrets, and misspelt variables.
         */
        get: operations["getSettings"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/admin/retention": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get retention
         * @description Return how long ended tasks are kept, and how many are older: of a job, or of all without own times.
         *
         *     `completed`, `failed` and `cancelled` are times to try: the answer is what they would delete, and nothing
         *     changes. They are written as in a policy's `keep`: seconds, `90s`, `15m`, `12h`, `30d` or `forever`.
         */
        get: operations["getRetention"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/admin/sweeper/preview": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Preview sweeper
         * @description Return what a cycle would do now. It changes nothing.
         */
        get: operations["previewSweeper"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/me": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get caller
         * @description Return the caller and what it may do; with `room`, also in that room.
         */
        get: operations["getCaller"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/version": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get version
         * @description Return the release of the server that responds, and of its database; also whether it has Socket.IO.
         */
        get: operations["getVersion"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/jobs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List all jobs
         * @description List the jobs of all rooms by full name, with their counts. `deleted` adds soft-deleted jobs.
         */
        get: operations["listAllJobs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List rooms
         * @description List the rooms that have tasks or jobs, by id, with their counts.
         */
        get: operations["listRooms"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Pause room
         * @description Stop claims of a room's tasks, until a time if there is one, and its schedules. Superusers only.
         *
         *     Claimed and running tasks continue. What is due meanwhile follows the `catch_up` of its schedule.
         */
        post: operations["pauseRoom"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/resume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Resume room
         * @description Allow claims of a paused room's tasks again. A pause of all rooms stays. Superusers only.
         */
        post: operations["resumeRoom"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Pause all rooms
         * @description Stop claims of all tasks, until a time if there is one, and all schedules. Superusers only.
         *
         *     Claimed and running tasks continue.
         */
        post: operations["pauseAllRooms"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/resume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Resume all rooms
         * @description End the pause of all rooms. Rooms that are paused by themselves stay paused. Superusers only.
         */
        post: operations["resumeAllRooms"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/pauses": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List pauses
         * @description List the paused rooms by id, after the pause of all rooms. The list of jobs has those of jobs.
         */
        get: operations["listPauses"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/providers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List all providers
         * @description List the providers of all rooms by full name, with their open requests.
         */
        get: operations["listAllProviders"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get metrics
         * @description Return the metrics of the queue, and of the process that responds, in Prometheus' format.
         */
        get: operations["getMetrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/overview": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get overview
         * @description Return the state of the queue: what is wrong first, with a remedy for each finding.
         */
        get: operations["getOverview"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/overview/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Follow overview
         * @description Stream the state of the queue: at once, and then whenever it has changed, at most every 2 s.
         */
        get: operations["followOverview"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/demand": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get demand
         * @description Return how many slots of workers would run all tasks that wait or run, of these jobs or rooms.
         *
         *     Callers without the scope `metrics` in all rooms name jobs or rooms that they may read.
         */
        get: operations["getDemand"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/jobs/{name}/demand": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get job demand
         * @description Return how many slots of workers would run all tasks of a job that wait or run.
         *
         *     A job that was forgotten has none, and is restored with the first of its tasks that waits again.
         */
        get: operations["getJobDemand"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/rooms/{room_id}/overview": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get room overview
         * @description Return the state of a room. That of a reserved room is for superusers.
         */
        get: operations["getRoomOverview"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/statistics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get statistics
         * @description Return what happened to tasks in each interval: of one job or tag, for superusers also of all jobs.
         *
         *     Others may read the statistics of the jobs of rooms that they may read, but not of reserved rooms, and of
         *     a tag in a room that they name. The response has at most 2,880 intervals, the newest before ``until``.
         */
        get: operations["getStatistics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List audit entries
         * @description List operators' actions, newest first; other callers name a room that they may read.
         */
        get: operations["listAuditEntries"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/bulk/preview": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Preview bulk action
         * @description Count the tasks that an action would affect. It changes nothing; its `token` confirms the action.
         *
         *     Callers that are no superusers may retry and cancel their own tasks, in rooms that they name.
         */
        post: operations["previewBulkAction"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/tasks/bulk": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Apply bulk action
         * @description Apply an action to up to 10,000 tasks that match the filter of its preview.
         *
         *     These are the newest, for a retry the oldest: repeats of it reach the end of any chain of steps.
         *
         *     Tasks that another request changes meanwhile, or that are newer than the preview, are not affected.
         */
        post: operations["applyBulkAction"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/joblib/ids": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Find ids
         * @description Find tasks, workers and groups by the first characters of their ids, at most ten of each.
         *
         *     Callers that are no superusers name rooms that they may read; they find their own workers only.
         */
        get: operations["findIds"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/problems/{problem_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Explain Problem
         * @description Explain a problem type.
         */
        get: operations["explainProblem"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/health/live": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Live
         * @description Return 200 while the process responds.
         */
        get: operations["checkLiveness"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/health/ready": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Ready
         * @description Return 200 while requests of each kind succeed, the database accepts writes and the sweeper runs.
         *
         *     The check `redis` of a server that uses Redis changes no status: the server works without it, but internal
         *     tasks and provider results wait. Nor does `clock`, which only a server with a test clock has.
         */
        get: operations["checkReadiness"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Get metrics
         * @description Return the metrics of the queue, and of the process that responds, in Prometheus' format.
         */
        get: operations["getMetricsAtRoot"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * After
         * @description What a task waits for: `tasks` by their ids, and `groups` of the same room, together at most 100.
         *
         *     In a batch that is atomic or makes a group, `tasks` may have indexes of earlier items. `on_failure` says
         *     what happens if one of them ends, but has not completed. A group has completed if all its tasks have.
         */
        After: {
            /** Tasks */
            tasks?: (string | number)[];
            /** Groups */
            groups?: string[];
            /** @description Default: `"fail"`. */
            on_failure?: components["schemas"]["OnFailure"];
        };
        /**
         * AttemptDetail
         * @description The details of an attempt: its last progress, the number of lines of its log, and its failure.
         *
         *     `log_dropped` counts the lines that are not kept: they were dropped by the worker, or are the oldest of a
         *     long log.
         */
        AttemptDetail: {
            /** Attempt */
            attempt: number;
            progress: components["schemas"]["Progress"] | null;
            /** Progress At */
            progress_at: string | null;
            /**
             * Log Lines
             * @default 0
             */
            log_lines: number;
            /**
             * Log Dropped
             * @default 0
             */
            log_dropped: number;
            failure: components["schemas"]["Failure"] | null;
        };
        /**
         * AuditEntry
         * @description An action. `target` is what it changed: a task or worker by id, a job by name, or a filter.
         */
        AuditEntry: {
            /** N */
            n: number;
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Actor */
            actor: string;
            /** Action */
            action: string;
            /** Room Id */
            room_id: string | null;
            /** Target */
            target: string;
            /** Detail */
            detail: {
                [key: string]: unknown;
            } | null;
            /** Request Id */
            request_id: string | null;
        };
        /**
         * AuditTrail
         * @description Actions, newest first; `next` is the `cursor` of the request that reads on, null at the end.
         */
        AuditTrail: {
            /** Items */
            items: components["schemas"]["AuditEntry"][];
            /** Next */
            next: string | null;
        };
        /**
         * Backoff
         * @description The pause before the next attempt: ``min(cap_seconds, base_seconds * factor ** failed)``.
         *
         *     `failed` counts the attempts that ended without success. The default is exp(min(10, failed)) seconds:
         *     2.7 s, 7.4 s, 20 s, 55 s, … 6 h. Each pause is shortened at random by up to the share `jitter`.
         */
        Backoff: {
            /**
             * Base Seconds
             * @description Default: `1.0`.
             */
            base_seconds?: number;
            /**
             * Factor
             * @description Default: `2.718281828459045`.
             */
            factor?: number;
            /**
             * Cap Seconds
             * @description Default: `22026.465794806703`.
             */
            cap_seconds?: number;
            /**
             * Jitter
             * @description Default: `0.0`.
             */
            jitter?: number;
        };
        /**
         * BatchGroup
         * @description The group that a batch makes for its tasks; it is sealed unless `sealed` is false.
         */
        BatchGroup: {
            /** Name */
            name?: string | null;
            on_end?: components["schemas"]["GroupOnEnd"] | null;
            /** Expires In Seconds */
            expires_in_seconds?: number | null;
            /** Room */
            room: string;
            /**
             * Sealed
             * @description Default: `true`.
             */
            sealed?: boolean;
        };
        /**
         * BatchReportRequest
         * @description Report on tasks. `worker_id` holds for each report that has none of its own.
         */
        BatchReportRequest: {
            /** Worker Id */
            worker_id?: string | null;
            /** Reports */
            reports: components["schemas"]["TaskReport"][];
        };
        /**
         * BatchResponse
         * @description The results of the items, in their order; `group` is the id of the group that the batch has made.
         */
        BatchResponse: {
            /** Results */
            results: components["schemas"]["BatchResult"][];
            /** Group */
            group?: string | null;
        };
        /**
         * BatchResult
         * @description The result of one item: the `status` and the body that the request for it alone would have got.
         *
         *     A success has the `id` of its task, `waits` if that waits for others, and, unless the request prefers
         *     ``return=minimal``, the `task`; a failure has a `problem`. Reported tasks beyond 8 MiB of payloads and
         *     results are left out.
         */
        BatchResult: {
            /** Status */
            status: number;
            /** Id */
            id?: string | null;
            /** Waits */
            waits?: true | null;
            task?: components["schemas"]["TaskResponse"] | null;
            problem?: components["schemas"]["Problem"] | null;
        };
        /**
         * BatchSubmitRequest
         * @description Submit tasks of any rooms and jobs, in order.
         *
         *     With `atomic`, either all are submitted, in one transaction, or none. With `group`, the same transaction
         *     makes a group of them, and seals it.
         */
        BatchSubmitRequest: {
            /** Tasks */
            tasks: components["schemas"]["TaskToSubmit"][];
            /**
             * Atomic
             * @description Default: `false`.
             */
            atomic?: boolean;
            group?: components["schemas"]["BatchGroup"] | null;
        };
        /**
         * BulkAction
         * @description What to do with all tasks that match a filter.
         *
         *     `retry`: failed and cancelled tasks. `cancel`: tasks that have not ended. `release`: held tasks.
         *     `purge`: delete tasks that have ended. `retarget`: pending tasks of earlier versions of the jobs of the
         *     filter get the current version, if their payloads match its schema. Tasks in another status are not
         *     affected.
         * @enum {string}
         */
        BulkAction: "retry" | "cancel" | "release" | "purge" | "retarget";
        /**
         * BulkPreview
         * @description How many tasks an action would affect; `examples` are the first of them.
         *
         *     `count` is at most `limit`, and `is_complete` is false if there are more: the action affects at most that
         *     many, a retry the oldest ones, any other the newest. With `tree` it affects `below` more tasks, which are
         *     below them. `token` confirms the action, for its caller and this filter, until `expires_at`.
         */
        BulkPreview: {
            action: components["schemas"]["BulkAction"];
            /** Count */
            count: number;
            /** Limit */
            limit: number;
            /** Is Complete */
            is_complete: boolean;
            /** Examples */
            examples: components["schemas"]["FoundTask"][];
            /** Token */
            token: string;
            /**
             * Expires At
             * Format: date-time
             */
            expires_at: string;
            /**
             * Below
             * @default 0
             */
            below: number;
        };
        /**
         * BulkPreviewRequest
         * @description Ask how many tasks an action would affect.
         *
         *     With `tree`, an action that cancels also cancels the tasks below those that match.
         */
        BulkPreviewRequest: {
            action: components["schemas"]["BulkAction"];
            filter: components["schemas"]["TaskFilter"];
            /**
             * Tree
             * @description Default: `false`.
             */
            tree?: boolean;
        };
        /**
         * BulkRequest
         * @description Apply an action that was previewed: `token` is that of the preview. The filter must be the same.
         */
        BulkRequest: {
            action: components["schemas"]["BulkAction"];
            filter: components["schemas"]["TaskFilter"];
            /**
             * Tree
             * @description Default: `false`.
             */
            tree?: boolean;
            /** Token */
            token: string;
        };
        /**
         * BulkResult
         * @description How many tasks the action has affected, and how many that match it has `skipped`.
         *
         *     Those had another status by then, were locked, or, for a purge, ended so recently that the statistics
         *     have not read them yet, or are needed by a group or a step that has not ended: a later action affects
         *     them.
         *
         *     Tasks that were created after the preview are not affected. `is_complete` is false if there may be more
         *     tasks that match: the action affects a limited number; preview it again. `refused` lists the first 100 of
         *     the skipped tasks whose payloads do not match the current schema.
         */
        BulkResult: {
            action: components["schemas"]["BulkAction"];
            /** Affected */
            affected: number;
            /** Skipped */
            skipped: number;
            /** Refused */
            refused?: components["schemas"]["RefusedTask"][];
            /**
             * Is Complete
             * @default true
             */
            is_complete: boolean;
        };
        /**
         * CatchUp
         * @description Which missed due times run later: none, the last one, or all, up to `max_catch_up`.
         * @enum {string}
         */
        CatchUp: "none" | "last" | "all";
        /**
         * ClaimBatch
         * @description A job whose tasks the worker runs together: a claim gets up to `max` of them, and no others.
         *
         *     If it may take fewer, a claim with ``Prefer: wait`` waits for more, until the oldest has waited for
         *     `wait_seconds`; nothing is claimed meanwhile. With `only_full`, which cannot wait, it takes `max` or none.
         */
        ClaimBatch: {
            /** Job */
            job: string;
            /** Max */
            max: number;
            /**
             * Wait Seconds
             * @description Default: `0.0`.
             */
            wait_seconds?: number;
            /**
             * Only Full
             * @description Default: `false`.
             */
            only_full?: boolean;
        };
        /**
         * ClaimedProviderRequest
         * @description A provider request, to be answered by ``POST /providers/{provider_id}/results``.
         *
         *     `request_id` is its hash. `params` are the parameters of the query as canonical JSON: a string for each,
         *     or a list of strings for one that was repeated.
         */
        ClaimedProviderRequest: {
            /** Request Id */
            request_id: string;
            /**
             * Provider Id
             * Format: uuid
             */
            provider_id: string;
            /** Provider Name */
            provider_name: string;
            /** Params */
            params: string;
        };
        /**
         * Debounce
         * @description Run a unique task `seconds` after the last of its submits, each of which replaces the payload.
         *
         *     It enters its queue at the latest `max_seconds` after the first submit.
         */
        Debounce: {
            /** Seconds */
            seconds: number;
            /** Max Seconds */
            max_seconds?: number | null;
        };
        /**
         * Deliveries
         * @description Deliveries, newest first; `next` is the `cursor` of the request that reads on, null at the end.
         */
        Deliveries: {
            /** Items */
            items: components["schemas"]["Delivery"][];
            /** Next */
            next: string | null;
        };
        /**
         * Delivery
         * @description An event for a webhook. `id` numbers the deliveries; `message_id` is the header `webhook-id`.
         *
         *     - `webhook`: null for that of a task's submit.
         *     - `state`: `waiting`, `delivered` or `failed`, since `ended_at` unless it waits.
         *     - `status_code`, `error`: of the last attempt; the body of the receiver's answer is not kept.
         */
        Delivery: {
            /** Id */
            id: number;
            /** Message Id */
            message_id: string;
            /** Room Id */
            room_id: string;
            /** Webhook */
            webhook: string | null;
            /** Event */
            event: string;
            /** Task Id */
            task_id: string | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /**
             * State
             * @enum {string}
             */
            state: "waiting" | "delivered" | "failed";
            /** Attempts */
            attempts: number;
            /** Attempted At */
            attempted_at: string | null;
            /** Ended At */
            ended_at: string | null;
            /** Status Code */
            status_code: number | null;
            /** Error */
            error: string | null;
        };
        /**
         * Demand
         * @description How many slots of workers the tasks need that wait or run.
         *
         *     `queued` counts the tasks that a worker with a free slot would get now. Other tasks in the queues are
         *     `held_back`, by a pause or a limit; scheduled tasks count nowhere. `running` are those that run on the
         *     workers whose `slots`, free and busy, are counted: those that send heartbeats and do not drain.
         *     `desired_slots` is `queued` plus `running`, each task with its cost. `oldest_seconds` is how long the
         *     first queued task has waited. `by_requirement` has the parts with the most desired slots, at most 100.
         *     `unknown_jobs` is there if some of several jobs that were asked for were never registered, or were deleted
         *     long after they were forgotten: these have no tasks.
         */
        Demand: {
            /** Queued */
            queued: number;
            /** Held Back */
            held_back: number;
            /** Running */
            running: number;
            /** Slots */
            slots: number;
            /** Oldest Seconds */
            oldest_seconds: number;
            /** Desired Slots */
            desired_slots: number;
            /** By Requirement */
            by_requirement: components["schemas"]["RequirementDemand"][];
            /** Unknown Jobs */
            unknown_jobs?: string[] | null;
        };
        /**
         * EmptyReason
         * @description Why a claim got no task.
         *
         *     `empty`: no task waits. `paused`: the jobs or rooms of the waiting tasks, or all rooms, are paused.
         *     `at_capacity`: the concurrency limit of the job or of the room is reached. `max_tasks`: the worker holds
         *     as many tasks as it may. `draining`: an operator drains the worker. `no_time`: each of its jobs is
         *     expected to run for longer than its `remaining_seconds`; the claim does not wait. `no_slots`: the first
         *     task takes more slots than the worker has free.
         * @enum {string}
         */
        EmptyReason: "empty" | "paused" | "at_capacity" | "max_tasks" | "draining" | "no_time" | "no_slots";
        /**
         * EventKind
         * @description What an event is about.
         * @enum {string}
         */
        EventKind: "status" | "progress" | "log" | "result";
        /**
         * Failure
         * @description The exception that ended an attempt.
         *
         *     - `type`: the exception's class, like ``KeyError`` or ``package.module.OwnError``.
         *     - `traceback`: the frames of the job's own code, the innermost last.
         *     - `full_traceback`: all frames, with the exceptions that caused it.
         *     - `notes`: what was added to the exception with ``add_note``.
         */
        Failure: {
            /** Type */
            type: string;
            /**
             * Traceback
             * @description Default: `""`.
             */
            traceback?: string;
            /**
             * Full Traceback
             * @description Default: `""`.
             */
            full_traceback?: string;
            /** Notes */
            notes?: string[];
        };
        /**
         * FailureGroup
         * @description Failed tasks of one job with the same error code and exception.
         *
         *     `exception` is the text before the first colon of the error if that can be the name of a class, else null.
         *     `first_at` and `last_at` are when the first and the last of these tasks ended; `example` is the newest,
         *     `error` its error, at most 300 characters.
         */
        FailureGroup: {
            /** Job Name */
            job_name: string;
            /** Error Code */
            error_code: string | null;
            /** Exception */
            exception: string | null;
            /** Count */
            count: number;
            /**
             * First At
             * Format: date-time
             */
            first_at: string;
            /**
             * Last At
             * Format: date-time
             */
            last_at: string;
            /**
             * Example
             * Format: uuid
             */
            example: string;
            /** Error */
            error: string | null;
        };
        /**
         * FailureGroups
         * @description The newest failed tasks that match a filter, in groups, the largest first.
         *
         *     `count` is how many tasks were grouped. `is_complete` is false if older ones match too: at most 2,000 are
         *     read.
         */
        FailureGroups: {
            /** Groups */
            groups: components["schemas"]["FailureGroup"][];
            /** Count */
            count: number;
            /**
             * Is Complete
             * @default true
             */
            is_complete: boolean;
        };
        /**
         * Finding
         * @description Something that is wrong. `code` is for programs; `detail` is a sentence, `remedy` what to do.
         *
         *     Codes: `job-without-workers`, `tasks-without-matching-workers`, `tasks-without-enough-time`,
         *     `job-without-executor`, `schedule-without-executor`, `job-paused`, `room-paused`, `queue-paused`,
         *     `waiting-too-long`, `failing-job`, `failure-rate`, `sweeper-silent`, `sweeper-held-back`,
         *     `silent-workers`, `lost-attempts`, `schedule-failing`, `schedule-run-failed`, `worker-token-ending`,
         *     `group-on-end-failed`, `webhook-failing`, `webhook-disabled`, `pending-tasks-near-limit`,
         *     `result-store-near-limit`, `different-versions`. `since` is when it began, as far as is known.
         */
        Finding: {
            /** Code */
            code: string;
            severity: components["schemas"]["Severity"];
            /** Detail */
            detail: string;
            /** Remedy */
            remedy: string;
            /** Job */
            job: string | null;
            /** Room */
            room: string | null;
            /** Task */
            task: string | null;
            /** Count */
            count: number | null;
            /** Since */
            since: string | null;
        };
        /**
         * FoundTask
         * @description A task in the result of a search, without payload and result. `error` has at most 300 characters.
         *
         *     In a search, and in the preview of an action on many tasks, `payload_preview` are the first 200 characters
         *     of the payload as JSON text, `worker_name` is what the worker calls itself while it is there, for
         *     superusers, `progress` is the last of a held task, `waits_for` is null unless a pending task waits for
         *     something else than a free slot, and `has_children` is whether it has submitted other tasks. In other
         *     answers these are null, or false.
         */
        FoundTask: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Job Name */
            job_name: string;
            /** Room Id */
            room_id: string;
            status: components["schemas"]["TaskStatus"];
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Claimed At */
            claimed_at: string | null;
            /** Started At */
            started_at: string | null;
            /** Completed At */
            completed_at: string | null;
            /** Worker Id */
            worker_id: string | null;
            /** Created By */
            created_by: string | null;
            /**
             * Attempt
             * @default 0
             */
            attempt: number;
            /**
             * Attempts
             * @default 0
             */
            attempts: number;
            /**
             * Priority
             * @default 0
             */
            priority: number;
            /** Run At */
            run_at: string | null;
            /** Error */
            error: string | null;
            /** Error Code */
            error_code: string | null;
            /**
             * Version
             * @default 1
             */
            version: number;
            /** Payload Preview */
            payload_preview: string | null;
            /** Worker Name */
            worker_name: string | null;
            progress: components["schemas"]["Progress"] | null;
            waits_for: components["schemas"]["WaitsFor"] | null;
            /** Tags */
            tags?: string[] | null;
            /** Parent */
            parent?: string | null;
            /** Root */
            root?: string | null;
            /**
             * Has Children
             * @default false
             */
            has_children: boolean;
        };
        /**
         * FoundTasks
         * @description A part of the result of a search, newest first.
         *
         *     `next` is the `cursor` of the request that reads on, null at the end. A search that reads many tasks to
         *     find few ends early: then the part has fewer tasks than wanted, even none, and `next` reads on.
         */
        FoundTasks: {
            /** Items */
            items: components["schemas"]["FoundTask"][];
            /** Next */
            next: string | null;
        };
        /**
         * GroupEntries
         * @description Groups, newest first; `next` is the `cursor` of the request that reads on, null at the end.
         */
        GroupEntries: {
            /** Items */
            items: components["schemas"]["GroupResponse"][];
            /** Next */
            next: string | null;
        };
        /**
         * GroupEvents
         * @description A group, if it has changed since the state `after`. `next` is the number of its state.
         *
         *     `ended`: the group has ended, and no further events follow.
         */
        GroupEvents: {
            group?: components["schemas"]["GroupResponse"] | null;
            /** Next */
            next: number;
            /**
             * Ended
             * @default false
             */
            ended: boolean;
        };
        /**
         * GroupFailure
         * @description A failed task of a group. `error` has at most 300 characters.
         */
        GroupFailure: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Job Name */
            job_name: string;
            /** Error */
            error: string | null;
            /** Error Code */
            error_code: string | null;
        };
        /**
         * GroupOnEnd
         * @description The task to submit when a group ends, of the job with this full name, in the room of the group.
         *
         *     In `payload` a value ``{"$group": "counts"}`` is replaced by how many tasks have each status, and
         *     ``{"$group": "results"}`` by a reference to the results, which Python workers read before they call the
         *     job: a list in the order of submission, with null for each task that has not completed.
         */
        GroupOnEnd: {
            /** Job */
            job: string;
            /** Payload */
            payload?: {
                [key: string]: unknown;
            };
            /** @description Default: `"ended"`. */
            when?: components["schemas"]["OnEndWhen"];
        };
        /**
         * GroupRequest
         * @description Create a group in a room. Submit its tasks with its id as `group`, and seal it after the last one.
         */
        GroupRequest: {
            /** Name */
            name?: string | null;
            on_end?: components["schemas"]["GroupOnEnd"] | null;
            /** Expires In Seconds */
            expires_in_seconds?: number | null;
            /** Room */
            room: string;
        };
        /**
         * GroupResponse
         * @description A group of tasks of a room.
         *
         *     - `parent`: only of a group that the token of a task has made: this task, the parent of all its tasks.
         *     - `sealed`: no more tasks can be added. A sealed group ends when all its tasks have ended, at `ended_at`.
         *       A task that is retried afterwards changes the counts, but the group stays ended.
         *     - `counts`, `total`: how many of its tasks have each status, and how many there are.
         *     - `progress`: from 0 to 1: the share of ended tasks, and of running ones what they report; null without
         *       tasks.
         *     - `failures`: the first ten failed tasks, in the order of submission.
         *     - `expires_at`: when waiting tasks fail; null if they do not, or the group has ended.
         *     - `on_end`, `on_end_state`: what to submit at the end, and whether that has happened. `on_end_task`: the
         *       task that was submitted. `error`: why it could not be submitted.
         */
        GroupResponse: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Room */
            room: string;
            /** Name */
            name: string | null;
            /** Created By */
            created_by: string;
            /** Parent */
            parent?: string | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /**
             * Sealed
             * @default false
             */
            sealed: boolean;
            /** Expires At */
            expires_at: string | null;
            /** Ended At */
            ended_at: string | null;
            /**
             * Total
             * @default 0
             */
            total: number;
            counts: components["schemas"]["StatusCounts"];
            /** Progress */
            progress: number | null;
            /** Failures */
            failures: components["schemas"]["GroupFailure"][];
            on_end?: components["schemas"]["GroupOnEnd"] | null;
            on_end_state?: components["schemas"]["OnEndState"] | null;
            /** On End Task */
            on_end_task?: string | null;
            /** Error */
            error?: string | null;
        };
        /**
         * GroupUpdate
         * @description Seal a group: no more tasks can be added, and it ends when all have ended.
         */
        GroupUpdate: {
            /**
             * Sealed
             * @constant
             */
            sealed: true;
        };
        /**
         * HeartbeatRequest
         * @description A heartbeat. `tasks` are all tasks that the worker holds; the response has a verdict for each.
         *
         *     The server releases, retries or fails a held task that the list omits for three heartbeats. Without the
         *     field, no task is omitted.
         *
         *     `max_tasks` changes how many tasks the worker may hold at once, `worker` what is known about it. With
         *     `tokens`, the verdict on each task that the worker holds has a new `token` of the task.
         */
        HeartbeatRequest: {
            /** Tasks */
            tasks?: components["schemas"]["NamedTask"][];
            /** Max Tasks */
            max_tasks?: number | null;
            worker?: components["schemas"]["WorkerInfo"] | null;
            /**
             * Tokens
             * @description Default: `false`.
             */
            tokens?: boolean;
        };
        /**
         * Histogram
         * @description How many durations are in each bucket; `buckets` has one count more than `BUCKET_BOUNDS`.
         *
         *     A bucket has the durations up to its bound that are in no bucket before it. `sum` is in seconds.
         */
        Histogram: {
            /** Buckets */
            buckets: number[];
            /**
             * Sum
             * @default 0
             */
            sum: number;
        };
        /**
         * Interval
         * @description The counts of one interval, which begins at `start`.
         */
        Interval: {
            /**
             * Submitted
             * @default 0
             */
            submitted: number;
            /**
             * Completed
             * @default 0
             */
            completed: number;
            /**
             * Failed
             * @default 0
             */
            failed: number;
            /**
             * Cancelled
             * @default 0
             */
            cancelled: number;
            /**
             * Retried
             * @default 0
             */
            retried: number;
            /**
             * Lost
             * @default 0
             */
            lost: number;
            /** Causes */
            causes: {
                [key: string]: number;
            };
            waiting: components["schemas"]["Histogram"];
            running: components["schemas"]["Histogram"];
            /**
             * Start
             * Format: date-time
             */
            start: string;
        };
        /**
         * JobBatch
         * @description How workers put tasks of a job together: up to `max` of them in one call.
         *
         *     If fewer are pending, a worker with a free slot waits for more, until the oldest has waited for
         *     `wait_seconds`. With `key`, a JSON pointer into the payload, a batch has tasks with equal values only.
         */
        JobBatch: {
            /** Max */
            max: number;
            /**
             * Wait Seconds
             * @description Default: `0.1`.
             */
            wait_seconds?: number;
            /** Key */
            key?: string | null;
        };
        /**
         * JobEntries
         * @description Jobs by full name; `next` is the `cursor` of the request that reads on, null at the end.
         */
        JobEntries: {
            /** Items */
            items: components["schemas"]["JobEntry"][];
            /** Next */
            next: string | null;
        };
        /**
         * JobEntry
         * @description A job with its counts, of all its versions. `workers` serve the current `version`, with these `slots`.
         *
         *     `versions` lists the current one, and those with workers or waiting tasks; an overview has none.
         *
         *     `oldest_waiting_at` is when the oldest task of its queue was created, null if the queue is empty.
         *     `unserved_since` is when its last worker left, null while one serves it. `paused_until` is null for a
         *     pause that a resume ends.
         */
        JobEntry: {
            /**
             * Max Attempts
             * @description Default: `1`.
             */
            max_attempts: number;
            /**
             * Retry On
             * @description Default: `["error", "timeout", "worker_lost"]`.
             */
            retry_on: components["schemas"]["RetryOn"][];
            /**
             * Non Retryable
             * @description Default: `[]`.
             */
            non_retryable: string[];
            /** @description Default: `{"base_seconds": 1.0, "factor": 2.718281828459045, "cap_seconds": 22026.465794806703, "jitter": 0.0}`. */
            backoff: components["schemas"]["Backoff"];
            /**
             * Max Crashes
             * @description Default: `3`.
             */
            max_crashes: number;
            /** Timeout Seconds */
            timeout_seconds: number | null;
            /** Expected Seconds */
            expected_seconds: number | null;
            /**
             * Start Timeout Seconds
             * @description Default: `60.0`.
             */
            start_timeout_seconds: number;
            /** Max In Flight */
            max_in_flight: number | null;
            /** Max Pending */
            max_pending: number | null;
            /** Max Pending Per Room */
            max_pending_per_room: number | null;
            /**
             * Limits
             * @description Default: `[]`.
             */
            limits: components["schemas"]["JobLimit"][];
            /**
             * Priority
             * @description Default: `0`.
             */
            priority: number;
            without_workers: components["schemas"]["WithoutWorkers"] | null;
            keep: components["schemas"]["Keep"] | null;
            /** Requires */
            requires: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            };
            /**
             * Cost
             * @description Default: `1`.
             */
            cost: number;
            /** Prefer */
            prefer: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            };
            batch: components["schemas"]["JobBatch"] | null;
            /** Schema */
            schema: {
                [key: string]: unknown;
            };
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Full Name */
            full_name: string;
            /** Room Id */
            room_id: string;
            /** Category */
            category: string;
            /** Name */
            name: string;
            /**
             * Paused
             * @description Default: `false`.
             */
            paused: boolean;
            /** Paused Until */
            paused_until: string | null;
            /**
             * Deleted
             * @description Default: `false`.
             */
            deleted: boolean;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Workers */
            workers: number;
            /** Slots */
            slots: number;
            /** Queued */
            queued: number;
            /** Scheduled */
            scheduled: number;
            counts: components["schemas"]["StatusCounts"];
            /** Oldest Waiting At */
            oldest_waiting_at: string | null;
            /** Unserved Since */
            unserved_since: string | null;
            /**
             * Version
             * @description Default: `1`.
             */
            version: number;
            /** Versions */
            versions: components["schemas"]["JobVersion"][];
        };
        /**
         * JobLimit
         * @description A limit of a job: for all its tasks, or with `key` for all tasks with the same value of that key.
         *
         *     With `name` it is the limit of this name, which other jobs may share: its values are there.
         */
        JobLimit: {
            /** Max In Flight */
            max_in_flight?: number | null;
            rate?: components["schemas"]["Rate"] | null;
            /** Name */
            name?: string | null;
            /** Key */
            key?: string | null;
        };
        /**
         * JobPage
         * @description One page of a list of jobs, newest first; `total` counts the whole list.
         */
        JobPage: {
            /** Items */
            items: components["schemas"]["JobSummary"][];
            /** Total */
            total: number;
            /** Limit */
            limit: number;
            /** Offset */
            offset: number;
        };
        /**
         * JobPutRequest
         * @description Register a job without a worker, or change the policy of one.
         *
         *     Without `schema`, a job that exists keeps its own. Omitted policy fields keep their registered or default
         *     value; `without_workers` of a new job is ``queue``.
         */
        JobPutRequest: {
            /**
             * Max Attempts
             * @description Default: `1`.
             */
            max_attempts?: number;
            /**
             * Retry On
             * @description Default: `["error", "timeout", "worker_lost"]`.
             */
            retry_on?: components["schemas"]["RetryOn"][];
            /**
             * Non Retryable
             * @description Default: `[]`.
             */
            non_retryable?: string[];
            /** @description Default: `{"base_seconds": 1.0, "factor": 2.718281828459045, "cap_seconds": 22026.465794806703, "jitter": 0.0}`. */
            backoff?: components["schemas"]["Backoff"];
            /**
             * Max Crashes
             * @description Default: `3`.
             */
            max_crashes?: number;
            /** Timeout Seconds */
            timeout_seconds?: number | null;
            /** Expected Seconds */
            expected_seconds?: number | null;
            /**
             * Start Timeout Seconds
             * @description Default: `60.0`.
             */
            start_timeout_seconds?: number;
            /** Max In Flight */
            max_in_flight?: number | null;
            /** Max Pending */
            max_pending?: number | null;
            /** Max Pending Per Room */
            max_pending_per_room?: number | null;
            /**
             * Limits
             * @description Default: `[]`.
             */
            limits?: components["schemas"]["JobLimit"][];
            /**
             * Priority
             * @description Default: `0`.
             */
            priority?: number;
            without_workers?: components["schemas"]["WithoutWorkers"] | null;
            keep?: components["schemas"]["Keep"] | null;
            /** Requires */
            requires?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            };
            /**
             * Cost
             * @description Default: `1`.
             */
            cost?: number;
            /** Prefer */
            prefer?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            };
            batch?: components["schemas"]["JobBatch"] | null;
            /** Schema */
            schema?: {
                [key: string]: unknown;
            };
        };
        /**
         * JobRegisterRequest
         * @description Register a job and link a worker to it; without `worker_id` a new worker is created.
         *
         *     Omitted policy fields keep their registered or default value. `max_tasks`: how many tasks the worker may
         *     hold at once, null for no limit. `worker` describes a new worker. `schedule` creates or replaces the
         *     schedule of the room that has the job's name; it stays when the worker leaves.
         */
        JobRegisterRequest: {
            /**
             * Max Attempts
             * @description Default: `1`.
             */
            max_attempts?: number;
            /**
             * Retry On
             * @description Default: `["error", "timeout", "worker_lost"]`.
             */
            retry_on?: components["schemas"]["RetryOn"][];
            /**
             * Non Retryable
             * @description Default: `[]`.
             */
            non_retryable?: string[];
            /** @description Default: `{"base_seconds": 1.0, "factor": 2.718281828459045, "cap_seconds": 22026.465794806703, "jitter": 0.0}`. */
            backoff?: components["schemas"]["Backoff"];
            /**
             * Max Crashes
             * @description Default: `3`.
             */
            max_crashes?: number;
            /** Timeout Seconds */
            timeout_seconds?: number | null;
            /** Expected Seconds */
            expected_seconds?: number | null;
            /**
             * Start Timeout Seconds
             * @description Default: `60.0`.
             */
            start_timeout_seconds?: number;
            /** Max In Flight */
            max_in_flight?: number | null;
            /** Max Pending */
            max_pending?: number | null;
            /** Max Pending Per Room */
            max_pending_per_room?: number | null;
            /**
             * Limits
             * @description Default: `[]`.
             */
            limits?: components["schemas"]["JobLimit"][];
            /**
             * Priority
             * @description Default: `0`.
             */
            priority?: number;
            without_workers?: components["schemas"]["WithoutWorkers"] | null;
            keep?: components["schemas"]["Keep"] | null;
            /** Requires */
            requires?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            };
            /**
             * Cost
             * @description Default: `1`.
             */
            cost?: number;
            /** Prefer */
            prefer?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            };
            batch?: components["schemas"]["JobBatch"] | null;
            /** Schema */
            schema?: {
                [key: string]: unknown;
            };
            /** Category */
            category: string;
            /** Name */
            name: string;
            /** Worker Id */
            worker_id?: string | null;
            /** Max Tasks */
            max_tasks?: number | null;
            worker?: components["schemas"]["WorkerInfo"] | null;
            schedule?: components["schemas"]["ScheduleTimes"] | null;
        };
        /**
         * JobResponse
         * @description A job. `workers` are the ids of the workers that serve it.
         *
         *     `worker_id` is the registering worker, only in the response to a registration. `paused`: an operator has
         *     paused the job, so none of its tasks are claimed, until `paused_until` if that is set. `unserved_since` is
         *     when its last worker left, null while one serves it.
         *
         *     `version` is the number of its schema: the current one, or in the response to a registration that of the
         *     worker. `versions` lists the current one, and those with workers or waiting tasks.
         */
        JobResponse: {
            /**
             * Max Attempts
             * @description Default: `1`.
             */
            max_attempts: number;
            /**
             * Retry On
             * @description Default: `["error", "timeout", "worker_lost"]`.
             */
            retry_on: components["schemas"]["RetryOn"][];
            /**
             * Non Retryable
             * @description Default: `[]`.
             */
            non_retryable: string[];
            /** @description Default: `{"base_seconds": 1.0, "factor": 2.718281828459045, "cap_seconds": 22026.465794806703, "jitter": 0.0}`. */
            backoff: components["schemas"]["Backoff"];
            /**
             * Max Crashes
             * @description Default: `3`.
             */
            max_crashes: number;
            /** Timeout Seconds */
            timeout_seconds: number | null;
            /** Expected Seconds */
            expected_seconds: number | null;
            /**
             * Start Timeout Seconds
             * @description Default: `60.0`.
             */
            start_timeout_seconds: number;
            /** Max In Flight */
            max_in_flight: number | null;
            /** Max Pending */
            max_pending: number | null;
            /** Max Pending Per Room */
            max_pending_per_room: number | null;
            /**
             * Limits
             * @description Default: `[]`.
             */
            limits: components["schemas"]["JobLimit"][];
            /**
             * Priority
             * @description Default: `0`.
             */
            priority: number;
            without_workers: components["schemas"]["WithoutWorkers"] | null;
            keep: components["schemas"]["Keep"] | null;
            /** Requires */
            requires: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            };
            /**
             * Cost
             * @description Default: `1`.
             */
            cost: number;
            /** Prefer */
            prefer: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            };
            batch: components["schemas"]["JobBatch"] | null;
            /** Schema */
            schema: {
                [key: string]: unknown;
            };
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Room Id */
            room_id: string;
            /** Category */
            category: string;
            /** Name */
            name: string;
            /** Full Name */
            full_name: string;
            /** Workers */
            workers: string[];
            /** Worker Id */
            worker_id: string | null;
            /**
             * Paused
             * @description Default: `false`.
             */
            paused: boolean;
            /** Paused Until */
            paused_until: string | null;
            /** Unserved Since */
            unserved_since: string | null;
            /**
             * Version
             * @description Default: `1`.
             */
            version: number;
            /**
             * Versions
             * @description Default: `[]`.
             */
            versions: components["schemas"]["JobVersion"][];
        };
        /**
         * JobSummary
         * @description A job in a list. For `paused` to `unserved_since` see a job; servers before 1.0 return none of them.
         */
        JobSummary: {
            /** Full Name */
            full_name: string;
            /** Category */
            category: string;
            /** Name */
            name: string;
            /** Workers */
            workers: string[];
            /**
             * Paused
             * @default false
             */
            paused: boolean;
            /** Paused Until */
            paused_until: string | null;
            /** Unserved Since */
            unserved_since: string | null;
        };
        /**
         * JobVersion
         * @description A version of a job: tasks that were validated against one schema.
         *
         *     `workers` is how many workers may serve it, by their schemas; `pending` are the tasks in its queue, and
         *     `scheduled` those that enter it later. New tasks are of the `current` one.
         */
        JobVersion: {
            /** Version */
            version: number;
            /** Current */
            current: boolean;
            /** Workers */
            workers: number;
            /** Pending */
            pending: number;
            /** Scheduled */
            scheduled: number;
        };
        /**
         * Keep
         * @description How long ended tasks are kept, by their status, with their payloads, results, logs and attempts.
         *
         *     In seconds, or as text with a unit, such as `90s`, `15m`, `12h` or `30d`; `forever` keeps them. A status
         *     that is left out has the time of the server's settings.
         */
        Keep: {
            /** Completed */
            completed?: number | "forever" | null;
            /** Failed */
            failed?: number | "forever" | null;
            /** Cancelled */
            cancelled?: number | "forever" | null;
        };
        /**
         * KeptTasks
         * @description How long ended tasks are kept: those of `job`, or with null of all jobs without times of their own.
         *
         *     The server deletes those that are older. It counts up to 10,000 tasks for each time: without `is_complete`
         *     there may be more. `applies_at`: default times apply from then on; null if they do already.
         */
        KeptTasks: {
            /** Job */
            job: string | null;
            completed: components["schemas"]["KeptTime"];
            failed: components["schemas"]["KeptTime"];
            cancelled: components["schemas"]["KeptTime"];
            /** Is Complete */
            is_complete: boolean;
            /** Applies At */
            applies_at: string | null;
        };
        /**
         * KeptTime
         * @description How long ended tasks of a status are kept; null for ever. `older` is how many are older than that.
         *
         *     It counts no task that is kept for others: for a step that waits, or for a group that has not ended.
         *     `source` is `job`, `settings` or `proposed`.
         */
        KeptTime: {
            /** Keep Seconds */
            keep_seconds: number | null;
            /**
             * Source
             * @enum {string}
             */
            source: "job" | "settings" | "proposed";
            /** Older */
            older: number;
        };
        /**
         * LimitEntry
         * @description A limit that jobs share by its name, and who defined it last.
         */
        LimitEntry: {
            /** Name */
            name: string;
            /** Max In Flight */
            max_in_flight: number | null;
            rate: components["schemas"]["Rate"] | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /**
             * Updated At
             * Format: date-time
             */
            updated_at: string;
            /** Updated By */
            updated_by: string;
        };
        /**
         * LimitPage
         * @description One page of the limits that jobs share, by name; `total` counts the whole list.
         */
        LimitPage: {
            /** Items */
            items: components["schemas"]["LimitEntry"][];
            /** Total */
            total: number;
            /** Limit */
            limit: number;
            /** Offset */
            offset: number;
        };
        /**
         * LimitValues
         * @description What a limit allows: `max_in_flight` tasks claimed or running at once, and a `rate` of claims.
         */
        LimitValues: {
            /** Max In Flight */
            max_in_flight?: number | null;
            rate?: components["schemas"]["Rate"] | null;
        };
        /**
         * LogLevel
         * @description The level of a line, as in Python's `logging`.
         * @enum {string}
         */
        LogLevel: "debug" | "info" | "warning" | "error" | "critical";
        /**
         * LogLine
         * @description One line of a task's log, without its line break.
         */
        LogLine: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Text */
            text: string;
            /** @description Default: `"info"`. */
            level?: components["schemas"]["LogLevel"];
            /** @description Default: `"log"`. */
            source?: components["schemas"]["LogSource"];
        };
        /**
         * LogPart
         * @description Consecutive lines of an attempt's log. `first` is the number of the first one, counted from 1.
         *
         *     The server ignores lines that it has, so a part may be sent again. Numbers that it never got are lines
         *     that were dropped.
         */
        LogPart: {
            /** First */
            first: number;
            /** Lines */
            lines: components["schemas"]["LogLine"][];
        };
        /**
         * LogSource
         * @description Where a line comes from: written to the log by the job, or captured from one of its streams.
         * @enum {string}
         */
        LogSource: "log" | "stdout" | "stderr";
        /**
         * Me
         * @description The caller. `permissions` are what it may do; endpoints check them again.
         *
         *     `all:read`: read every room, the audit trail, servers and settings. `all:operate`: pause jobs, drain
         *     workers, change the sweeper, and act on all tasks. `room:read`, `room:write` and `room:operate` are those
         *     of `room`.
         *
         *     `roles` are those of its token or user, empty without one. `rooms` are the rooms in which it has the
         *     rights `scopes`, and `jobs` patterns of the jobs that it may submit and serve; null for all.
         *
         *     `expires_in_seconds` is there if the token of the request ends by itself: for how much longer it is valid.
         *     `clock_ahead_seconds` is there if the server has a test clock: how far that is ahead of the real time.
         */
        Me: {
            /** Id */
            id: string;
            /** Is Superuser */
            is_superuser: boolean;
            /** Roles */
            roles: string[];
            /** Scopes */
            scopes: string[];
            /** Rooms */
            rooms: string[] | null;
            /** Jobs */
            jobs: string[] | null;
            /** Room */
            room: string | null;
            /** Permissions */
            permissions: components["schemas"]["Permission"][];
            /** Expires In Seconds */
            expires_in_seconds?: number | null;
            /** Clock Ahead Seconds */
            clock_ahead_seconds?: number | null;
        };
        /**
         * NamedTask
         * @description A task that a worker believes it holds; `attempt` is the token of its claim.
         *
         *     `progress` and `log` are what its job did since the last report, as in a report.
         */
        NamedTask: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Attempt */
            attempt: number;
            progress?: components["schemas"]["Progress"] | null;
            log?: components["schemas"]["LogPart"] | null;
        };
        /**
         * NumberedLine
         * @description A line of a log with its number `n`, counted from 1. Numbers that are missing were dropped.
         */
        NumberedLine: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Text */
            text: string;
            /** @description Default: `"info"`. */
            level?: components["schemas"]["LogLevel"];
            /** @description Default: `"log"`. */
            source?: components["schemas"]["LogSource"];
            /** N */
            n: number;
        };
        /**
         * OnEndState
         * @description What became of `on_end`: `waiting` for the end, `submitted`, `skipped`, because not all have completed.
         *
         *     `failed`: its task could not be submitted, for instance because the job no longer exists.
         * @enum {string}
         */
        OnEndState: "waiting" | "submitted" | "skipped" | "failed";
        /**
         * OnEndWhen
         * @description When the task of `on_end` is submitted: `ended`: at the end of the group, however its tasks ended.
         *
         *     `completed`: only if all of them have completed.
         * @enum {string}
         */
        OnEndWhen: "ended" | "completed";
        /**
         * OnFailure
         * @description What a task does if a predecessor ends, but has not completed.
         *
         *     `fail`: it fails with the code ``predecessor-failed``. `run`: it runs after the last end all the same.
         *     `hold`: it stays pending until the predecessor was retried and has completed, or it is run by hand.
         * @enum {string}
         */
        OnFailure: "fail" | "run" | "hold";
        /**
         * Overlap
         * @description What happens at a due time while earlier tasks of the schedule have not ended.
         *
         *     `allow`: its task is submitted. `skip`: it is not. `queue_one`: it is, unless one waits already.
         * @enum {string}
         */
        Overlap: "allow" | "skip" | "queue_one";
        /**
         * Overview
         * @description The state of the queue at `at`: findings first, the most urgent first.
         *
         *     `pauses` are those of rooms and of the whole queue, at most 100. `slots_used` of the `slots` of all
         *     workers run a task; a task that is claimed ahead uses no slot. `recent` are the intervals of the last
         *     hour, one for each minute. `statistics_until` is the moment up to which they are complete.
         */
        Overview: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Findings */
            findings: components["schemas"]["Finding"][];
            counts: components["schemas"]["StatusCounts"];
            /** Queued */
            queued: number;
            /** Scheduled */
            scheduled: number;
            /** Oldest Waiting At */
            oldest_waiting_at: string | null;
            /** Jobs */
            jobs: number;
            /** Paused Jobs */
            paused_jobs: number;
            /** Pauses */
            pauses: components["schemas"]["PauseEntry"][];
            /** Workers */
            workers: {
                [key: string]: number;
            };
            /** Slots */
            slots: number;
            /** Slots Used */
            slots_used: number | null;
            /** Servers */
            servers: components["schemas"]["ServerEntry"][];
            /** Recent */
            recent: components["schemas"]["Interval"][];
            /** Statistics Until */
            statistics_until: string | null;
        };
        /**
         * PauseEntries
         * @description Pauses by room, that of all rooms first.
         *
         *     `next` is the `cursor` of the request that reads on, null at the end.
         */
        PauseEntries: {
            /** Items */
            items: components["schemas"]["PauseEntry"][];
            /** Next */
            next: string | null;
        };
        /**
         * PauseEntry
         * @description A pause of a room, or of all rooms if `room` is null, until a time or, without one, until a resume.
         */
        PauseEntry: {
            /** Room */
            room: string | null;
            /** Until */
            until: string | null;
            /**
             * Paused At
             * Format: date-time
             */
            paused_at: string;
            /** Paused By */
            paused_by: string;
        };
        /**
         * PauseRequest
         * @description Pause a job, a room or all rooms until a time, or without one until a resume.
         */
        PauseRequest: {
            /** Until */
            until?: string | null;
        };
        /**
         * PauseState
         * @description Whether a room, or the whole queue if `room` is null, is paused, and the pauses that do it.
         *
         *     A room is paused by its own pause and by that of all rooms: then it has two.
         */
        PauseState: {
            /** Room */
            room: string | null;
            /** Paused */
            paused: boolean;
            /** Pauses */
            pauses: components["schemas"]["PauseEntry"][];
        };
        /**
         * Permission
         * @description What a caller may do. Those of a room are returned only for the room that the request names.
         * @enum {string}
         */
        Permission: "all:read" | "all:operate" | "room:read" | "room:write" | "room:operate";
        /**
         * PlannedChange
         * @description What the sweeper would do with a task; `reason` is as in the task's history.
         */
        PlannedChange: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            before: components["schemas"]["TaskStatus"];
            after: components["schemas"]["TaskStatus"];
            /** Reason */
            reason: string;
            /** Run At */
            run_at: string | null;
        };
        /**
         * PrefixMatches
         * @description The ids of tasks, workers and groups that begin with a prefix: at most ten of each.
         */
        PrefixMatches: {
            /** Tasks */
            tasks: string[];
            /** Workers */
            workers: string[];
            /** Groups */
            groups: string[];
        };
        /**
         * Problem
         * @description The body of an error response (RFC 9457); a problem may have extra members.
         */
        Problem: {
            /**
             * Type
             * @default about:blank
             */
            type: string;
            /** Title */
            title: string;
            /** Status */
            status: number;
            /** Detail */
            detail?: string | null;
            /** Instance */
            instance?: string | null;
        } & {
            [key: string]: unknown;
        };
        /**
         * Progress
         * @description How far a task is: `current` of `total` units, and what it does now. Each field may be unknown.
         *
         *     `data` is any JSON object of at most 16 KiB, for the job's own front-end.
         */
        Progress: {
            /** Current */
            current?: number | null;
            /** Total */
            total?: number | null;
            /** Unit */
            unit?: string | null;
            /** Message */
            message?: string | null;
            /** Data */
            data?: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * ProviderClaimRequest
         * @description Claim the oldest request that waits for one of the worker's providers.
         *
         *     A claim that is repeated with the same `claim_id`, because its response was lost, gets the same request.
         */
        ProviderClaimRequest: {
            /**
             * Worker Id
             * Format: uuid
             */
            worker_id: string;
            /** Claim Id */
            claim_id?: string | null;
        };
        /**
         * ProviderClaimResponse
         * @description The claimed request, or null.
         */
        ProviderClaimResponse: {
            request: components["schemas"]["ClaimedProviderRequest"] | null;
        };
        /**
         * ProviderEntries
         * @description Providers by full name; `next` is the `cursor` of the request that reads on, null at the end.
         */
        ProviderEntries: {
            /** Items */
            items: components["schemas"]["ProviderEntry"][];
            /** Next */
            next: string | null;
        };
        /**
         * ProviderEntry
         * @description A provider. `open_requests` is how many of its requests have no result yet.
         */
        ProviderEntry: {
            /** Schema */
            schema: {
                [key: string]: unknown;
            };
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Full Name */
            full_name: string;
            /** Room Id */
            room_id: string;
            /** Category */
            category: string;
            /** Name */
            name: string;
            /** Content Type */
            content_type: string;
            /** Worker Id */
            worker_id: string | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Connected */
            connected: boolean;
            /** Open Requests */
            open_requests: number;
        };
        /**
         * ProviderPage
         * @description One page of a list of providers, newest first; `total` counts the whole list.
         */
        ProviderPage: {
            /** Items */
            items: components["schemas"]["ProviderResponse"][];
            /** Total */
            total: number;
            /** Limit */
            limit: number;
            /** Offset */
            offset: number;
        };
        /**
         * ProviderRegisterRequest
         * @description Register a provider, and a worker for it; without `worker_id` a new worker is made.
         *
         *     `schema` describes the parameters of a request; `content_type` is that of the results. `worker` describes
         *     a new worker.
         */
        ProviderRegisterRequest: {
            /** Schema */
            schema?: {
                [key: string]: unknown;
            };
            /** Category */
            category: string;
            /** Name */
            name: string;
            /**
             * Content Type
             * @description Default: `"application/json"`.
             */
            content_type?: string;
            /** Worker Id */
            worker_id?: string | null;
            worker?: components["schemas"]["WorkerInfo"] | null;
        };
        /**
         * ProviderResponse
         * @description A provider; the worker `worker_id` answers its requests, with bytes of `content_type`.
         *
         *     A provider of ``@internal`` has no worker: the server sends its requests to a broker.
         */
        ProviderResponse: {
            /** Schema */
            schema: {
                [key: string]: unknown;
            };
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Room Id */
            room_id: string;
            /** Category */
            category: string;
            /** Name */
            name: string;
            /** Full Name */
            full_name: string;
            /** Worker Id */
            worker_id: string | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Content Type */
            content_type: string;
        };
        /**
         * Rate
         * @description How often tasks may be claimed: `count` in each `per_seconds`, at even distances.
         *
         *     After a pause up to `burst` tasks may be claimed at once. In a period of s seconds at most
         *     ``burst + s * count / per_seconds`` are.
         */
        Rate: {
            /** Count */
            count: number;
            /** Per Seconds */
            per_seconds: number;
            /**
             * Burst
             * @description Default: `1`.
             */
            burst?: number;
        };
        /**
         * Readiness
         * @description Whether the server is ready; `checks` has `ok` or a reason for each part.
         */
        Readiness: {
            /** Status */
            status: string;
            /** Checks */
            checks: {
                [key: string]: string;
            };
        };
        /**
         * Reason
         * @description One reason why a task waits or is held. `code` is for programs, `detail` is a sentence.
         */
        Reason: {
            /** Code */
            code: string;
            /** Detail */
            detail: string;
        };
        /**
         * RefusedTask
         * @description A task whose payload does not match the current schema of its job, and why.
         */
        RefusedTask: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Detail */
            detail: string;
        };
        /**
         * RequirementDemand
         * @description The demand of the tasks that require the same labels of a worker, and take `cost` slots each.
         *
         *     `slots` are those of present workers with these labels.
         */
        RequirementDemand: {
            /** Requires */
            requires: {
                [key: string]: unknown;
            };
            /**
             * Cost
             * @default 1
             */
            cost: number;
            /** Queued */
            queued: number;
            /** Held Back */
            held_back: number;
            /** Running */
            running: number;
            /** Slots */
            slots: number;
            /** Oldest Seconds */
            oldest_seconds: number;
            /** Desired Slots */
            desired_slots: number;
        };
        /**
         * Resync
         * @description Events are missing: a new snapshot follows.
         *
         *     - `pruned`: the events after the position are no longer kept.
         *     - `unknown`: the position is not one of this stream.
         */
        Resync: {
            reason: components["schemas"]["ResyncReason"];
            /** After */
            after: number;
        };
        /**
         * ResyncReason
         * @description Why a stream cannot continue after the requested position.
         * @enum {string}
         */
        ResyncReason: "pruned" | "unknown";
        /**
         * RetryOn
         * @description Why an attempt ended without success: its worker was lost, it failed, or it exceeded its time limit.
         * @enum {string}
         */
        RetryOn: "worker_lost" | "error" | "timeout";
        /**
         * RoomEntries
         * @description Rooms by id; `next` is the `cursor` of the request that reads on, null at the end.
         */
        RoomEntries: {
            /** Items */
            items: components["schemas"]["RoomEntry"][];
            /** Next */
            next: string | null;
        };
        /**
         * RoomEntry
         * @description A room with its counts. `share` is its part, from 0 to 1, of all tasks that are claimed or running.
         */
        RoomEntry: {
            /** Id */
            id: string;
            counts: components["schemas"]["StatusCounts"];
            /** Jobs */
            jobs: number;
            /** Share */
            share: number;
            /** Oldest Waiting At */
            oldest_waiting_at: string | null;
        };
        /**
         * RoomEvents
         * @description Events of a room. Without a position, or after `resync`, its newest tasks come first.
         */
        RoomEvents: {
            resync?: components["schemas"]["Resync"] | null;
            /** Events */
            events: components["schemas"]["StreamEvent"][];
            /** Next */
            next: number;
            /**
             * Ended
             * @default false
             */
            ended: boolean;
            snapshot?: components["schemas"]["RoomSnapshot"] | null;
        };
        /**
         * RoomOverview
         * @description The state of one room at `at`, for a reader of the room; without statistics of other rooms.
         *
         *     `pauses` are its own and that of all rooms.
         */
        RoomOverview: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Room */
            room: string;
            /** Findings */
            findings: components["schemas"]["Finding"][];
            counts: components["schemas"]["StatusCounts"];
            /** Jobs */
            jobs: components["schemas"]["JobEntry"][];
            /** Pauses */
            pauses: components["schemas"]["PauseEntry"][];
            /** Oldest Waiting At */
            oldest_waiting_at: string | null;
        };
        /**
         * RoomSnapshot
         * @description The newest tasks of a room, newest first, and the count of all its tasks.
         */
        RoomSnapshot: {
            /** Tasks */
            tasks: components["schemas"]["TaskStatusEvent"][];
            /** Total */
            total: number;
        };
        /**
         * ScheduleEntries
         * @description Schedules by room and name; `next` is the `cursor` of the request that reads on, null at the end.
         */
        ScheduleEntries: {
            /** Items */
            items: components["schemas"]["ScheduleResponse"][];
            /** Next */
            next: string | null;
        };
        /**
         * SchedulePage
         * @description One page of the schedules of a room, by name; `total` counts the whole list.
         */
        SchedulePage: {
            /** Items */
            items: components["schemas"]["ScheduleResponse"][];
            /** Total */
            total: number;
            /** Limit */
            limit: number;
            /** Offset */
            offset: number;
        };
        /**
         * ScheduleRequest
         * @description Create a schedule of a job, or replace it. `job` is the job's full name.
         *
         *     Without `paused`, a schedule that exists stays paused or not.
         */
        ScheduleRequest: {
            /** Cron */
            cron?: string | null;
            /** Every Seconds */
            every_seconds?: number | null;
            /** At */
            at?: string | null;
            /**
             * Time Zone
             * @description Default: `"UTC"`.
             */
            time_zone?: string;
            /**
             * Jitter Seconds
             * @description Default: `0.0`.
             */
            jitter_seconds?: number;
            /** @description Default: `"allow"`. */
            overlap?: components["schemas"]["Overlap"];
            /** @description Default: `"last"`. */
            catch_up?: components["schemas"]["CatchUp"];
            /**
             * Max Catch Up
             * @description Default: `100`.
             */
            max_catch_up?: number;
            /** Starts At */
            starts_at?: string | null;
            /** Ends At */
            ends_at?: string | null;
            /** Payload */
            payload?: {
                [key: string]: unknown;
            };
            /** Priority */
            priority?: number | null;
            /** Expires In Seconds */
            expires_in_seconds?: number | null;
            /** Max Attempts */
            max_attempts?: number | null;
            unique?: components["schemas"]["Unique"] | null;
            debounce?: components["schemas"]["Debounce"] | null;
            /** Tags */
            tags?: string[] | null;
            /** Requires */
            requires?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
            /** Cost */
            cost?: number | null;
            /** Prefer */
            prefer?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
            /** Job */
            job: string;
            /** Paused */
            paused?: boolean | null;
        };
        /**
         * ScheduleResponse
         * @description A schedule. Its tasks are those of `created_by`, who has written it last.
         *
         *     - `next_due_at`: null after the last due time. `next`: the due times that the request asked for.
         *     - `last_due_at`, `last_task_id`: of the last task that was submitted at a due time, or that held its key.
         *     - `error`, `error_at`: why the last due time has no task; null if it has one, if `overlap` skipped it, or
         *       if another task held its key, unless `unique` rejects duplicates.
         */
        ScheduleResponse: {
            /** Room Id */
            room_id: string;
            /** Name */
            name: string;
            /** Job */
            job: string;
            /** Paused */
            paused: boolean;
            /** Created By */
            created_by: string;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /**
             * Updated At
             * Format: date-time
             */
            updated_at: string;
            /** Cron */
            cron: string | null;
            /** Every Seconds */
            every_seconds: number | null;
            /** At */
            at: string | null;
            /**
             * Time Zone
             * @default UTC
             */
            time_zone: string;
            /**
             * Jitter Seconds
             * @default 0
             */
            jitter_seconds: number;
            /** @default allow */
            overlap: components["schemas"]["Overlap"];
            /** @default last */
            catch_up: components["schemas"]["CatchUp"];
            /**
             * Max Catch Up
             * @default 100
             */
            max_catch_up: number;
            /** Starts At */
            starts_at: string | null;
            /** Ends At */
            ends_at: string | null;
            /** Payload */
            payload: {
                [key: string]: unknown;
            };
            /** Priority */
            priority: number | null;
            /** Expires In Seconds */
            expires_in_seconds: number | null;
            /** Max Attempts */
            max_attempts: number | null;
            unique: components["schemas"]["Unique"] | null;
            debounce: components["schemas"]["Debounce"] | null;
            /** Tags */
            tags: string[] | null;
            /** Requires */
            requires: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
            /** Cost */
            cost: number | null;
            /** Prefer */
            prefer: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
            /** Next Due At */
            next_due_at: string | null;
            /** Last Due At */
            last_due_at: string | null;
            /** Last Task Id */
            last_task_id: string | null;
            /** Error */
            error: string | null;
            /** Error At */
            error_at: string | null;
            /** Next */
            next?: string[] | null;
        };
        /**
         * ScheduleTimes
         * @description When a task is due, by exactly one of `cron`, `every_seconds` and `at`, and how it is submitted.
         *
         *     - `cron`: five fields (minute, hour, day, month, weekday), or six with the second first, in `time_zone`.
         *       A time that does not exist because clocks go forward is due at the next minute that does; one that
         *       exists twice is due once. If minute or hour begin with ``*``, times are those of UTC's minutes instead.
         *     - `every_seconds`: counted from `starts_at`, or from when the schedule got this interval.
         *     - `at`: once.
         *     - `jitter_seconds`: each task enters its queue up to so much later, at random.
         *     - `catch_up`, `max_catch_up`: for due times that no server submitted within a minute, because all were
         *       down or the schedule was paused.
         *     - `starts_at`, `ends_at`: the first and the last time that may be due.
         *     - `payload`, `priority`, `expires_in_seconds`, `max_attempts`, `unique`, `debounce`, `tags`, `requires`,
         *       `cost`, `prefer`: of each task, as in a submit. A due time whose key another task holds has no task of
         *       its own.
         */
        ScheduleTimes: {
            /** Cron */
            cron?: string | null;
            /** Every Seconds */
            every_seconds?: number | null;
            /** At */
            at?: string | null;
            /**
             * Time Zone
             * @description Default: `"UTC"`.
             */
            time_zone?: string;
            /**
             * Jitter Seconds
             * @description Default: `0.0`.
             */
            jitter_seconds?: number;
            /** @description Default: `"allow"`. */
            overlap?: components["schemas"]["Overlap"];
            /** @description Default: `"last"`. */
            catch_up?: components["schemas"]["CatchUp"];
            /**
             * Max Catch Up
             * @description Default: `100`.
             */
            max_catch_up?: number;
            /** Starts At */
            starts_at?: string | null;
            /** Ends At */
            ends_at?: string | null;
            /** Payload */
            payload?: {
                [key: string]: unknown;
            };
            /** Priority */
            priority?: number | null;
            /** Expires In Seconds */
            expires_in_seconds?: number | null;
            /** Max Attempts */
            max_attempts?: number | null;
            unique?: components["schemas"]["Unique"] | null;
            debounce?: components["schemas"]["Debounce"] | null;
            /** Tags */
            tags?: string[] | null;
            /** Requires */
            requires?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
            /** Cost */
            cost?: number | null;
            /** Prefer */
            prefer?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
        };
        /**
         * ScheduleUpdate
         * @description Pause or resume a schedule. After a pause, its due times meanwhile follow `catch_up`.
         */
        ScheduleUpdate: {
            /** Paused */
            paused: boolean;
        };
        /**
         * ServerCycle
         * @description A cycle of the sweeper of one server.
         */
        ServerCycle: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            mode: components["schemas"]["SweeperMode"] | null;
            /** Scanned */
            scanned: number;
            /** Stale */
            stale: number;
            /** Expired */
            expired: number;
            /** Released */
            released: number;
            /** Failed */
            failed: number;
            /** Pruned */
            pruned: number;
            /** Errors */
            errors: number;
            /** Elapsed */
            elapsed: number;
            /** Held Back */
            held_back: boolean;
            /**
             * Server Id
             * Format: uuid
             */
            server_id: string;
        };
        /**
         * ServerEntry
         * @description A server process. `is_silent`: its sweeper has not reported for three intervals.
         */
        ServerEntry: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Host */
            host: string;
            /** Pid */
            pid: number;
            /** Version */
            version: string;
            /**
             * Started At
             * Format: date-time
             */
            started_at: string;
            /**
             * Seen At
             * Format: date-time
             */
            seen_at: string;
            /** Is Silent */
            is_silent: boolean;
            sweeper_mode: components["schemas"]["SweeperMode"] | null;
            /** Sweep Interval Seconds */
            sweep_interval_seconds: number;
            /** Grace Remaining Seconds */
            grace_remaining_seconds: number;
            /** Last Good At */
            last_good_at: string | null;
        };
        /**
         * SettingEntry
         * @description A setting in force; a secret has no value.
         *
         *     `source` is `default`, `environment`, `file` or `argument`.
         */
        SettingEntry: {
            /** Name */
            name: string;
            /** Value */
            value: unknown;
            /** Default */
            default: unknown;
            /** Source */
            source: string;
            /**
             * Is Secret
             * @default false
             */
            is_secret: boolean;
            /**
             * Description
             * @default
             */
            description: string;
        };
        /**
         * Settings
         * @description The settings of the server that responds. `unknown` are variables that no setting has.
         */
        Settings: {
            /** Settings */
            settings: components["schemas"]["SettingEntry"][];
            /** Unknown */
            unknown: string[];
        };
        /**
         * Severity
         * @description How urgent a finding is. `info` is a state that an operator chose, such as a pause.
         * @enum {string}
         */
        Severity: "critical" | "warning" | "info";
        /**
         * Statistics
         * @description Statistics of all jobs, or of one, oldest interval first. Intervals without any task are not in it.
         *
         *     `resolution` is the length of an interval in seconds. The statistics include everything up to `until`, and
         *     the last interval may be incomplete. Those of a `tag` are of the newest 10,000 tasks with it that have not
         *     been deleted.
         */
        Statistics: {
            /** Job Id */
            job_id: string | null;
            /** Tag */
            tag?: string | null;
            /** Resolution */
            resolution: number;
            /**
             * Until
             * Format: date-time
             */
            until: string;
            /** Intervals */
            intervals: components["schemas"]["Interval"][];
        };
        /**
         * StatusCounts
         * @description How many tasks have each status. They are kept counts, so reading them scans no tasks.
         */
        StatusCounts: {
            /**
             * Pending
             * @default 0
             */
            pending: number;
            /**
             * Claimed
             * @default 0
             */
            claimed: number;
            /**
             * Running
             * @default 0
             */
            running: number;
            /**
             * Completed
             * @default 0
             */
            completed: number;
            /**
             * Failed
             * @default 0
             */
            failed: number;
            /**
             * Cancelled
             * @default 0
             */
            cancelled: number;
        };
        /**
         * StoredResult
         * @description A result that is kept as bytes: read it with ``GET /tasks/{id}/result``. `size` is in bytes.
         */
        StoredResult: {
            /** Content Type */
            content_type: string;
            /** Size */
            size: number;
            /** Etag */
            etag: string;
            /** Filename */
            filename: string | null;
            /** Expires At */
            expires_at: string | null;
        };
        /**
         * StreamEvent
         * @description An event of a task. `n` grows from event to event; those of one task need not be consecutive.
         *
         *     `data` is, for `status`, what the event `task_status_event` has; for `progress`, the `attempt` and the
         *     `progress`; for `log`, the `attempt` and the fields of a `LogPart`; for `result`, a `StoredResult`.
         */
        StreamEvent: {
            /** N */
            n: number;
            kind: components["schemas"]["EventKind"];
            /**
             * Task Id
             * Format: uuid
             */
            task_id: string;
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Data */
            data: {
                [key: string]: unknown;
            };
        };
        /**
         * StreamToken
         * @description A token that opens one event stream, as ``?token=…``, until `expires_at`.
         */
        StreamToken: {
            /** Token */
            token: string;
            /**
             * Expires At
             * Format: date-time
             */
            expires_at: string;
        };
        /**
         * SweeperCycle
         * @description The summary of one cycle of the sweeper; `elapsed` is in seconds, the other numbers are counts.
         *
         *     `scanned`, `stale` and `expired`: workers seen, silent for too long, removed. `released` and `failed`:
         *     tasks. `pruned`: deleted old tasks. `held_back`: the mass-expiry guard stopped the cycle, because most
         *     workers would have expired at once. `mode` is null if it could not be read from the database.
         */
        SweeperCycle: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            mode: components["schemas"]["SweeperMode"] | null;
            /** Scanned */
            scanned: number;
            /** Stale */
            stale: number;
            /** Expired */
            expired: number;
            /** Released */
            released: number;
            /** Failed */
            failed: number;
            /** Pruned */
            pruned: number;
            /** Errors */
            errors: number;
            /** Elapsed */
            elapsed: number;
            /** Held Back */
            held_back: boolean;
        };
        /**
         * SweeperDetail
         * @description The sweeper of the responding server, all servers, and the last 100 cycles of their sweepers.
         */
        SweeperDetail: {
            mode: components["schemas"]["SweeperMode"];
            /** Interval Seconds */
            interval_seconds: number;
            /** Grace Remaining Seconds */
            grace_remaining_seconds: number;
            /** Cycles */
            cycles: components["schemas"]["SweeperCycle"][];
            /** Servers */
            servers: components["schemas"]["ServerEntry"][];
            /** History */
            history: components["schemas"]["ServerCycle"][];
        };
        /**
         * SweeperMode
         * @description `enforce`: the sweeper acts. `observe`: it only logs what it would do. `off`: it does nothing.
         * @enum {string}
         */
        SweeperMode: "enforce" | "observe" | "off";
        /**
         * SweeperPreview
         * @description What a cycle of the sweeper would do now, at most one batch of each kind.
         *
         *     `scanned` and `stale` are numbers of workers; `workers` are the ids that would be removed.
         */
        SweeperPreview: {
            /** Scanned */
            scanned: number;
            /** Stale */
            stale: number;
            /** Workers */
            workers: string[];
            /** Tasks */
            tasks: components["schemas"]["PlannedChange"][];
        };
        /**
         * SweeperUpdate
         * @description Change the mode of the sweepers of all servers.
         */
        SweeperUpdate: {
            mode: components["schemas"]["SweeperMode"];
        };
        /**
         * TagList
         * @description Tags of tasks that have not been deleted, in their order, at most 50.
         */
        TagList: {
            /** Tags */
            tags: string[];
        };
        /**
         * TaskActionRequest
         * @description Release, retry or fail a task.
         *
         *     `worker_id` and `attempt`, if given, must be those of the current or last claim. `error` is the reason.
         */
        TaskActionRequest: {
            /** Worker Id */
            worker_id?: string | null;
            /** Attempt */
            attempt?: number | null;
            /** Error */
            error?: string | null;
        };
        /**
         * TaskAfter
         * @description What a task waits for, or has waited for; `waits_for` are the ids of those that keep it waiting now.
         */
        TaskAfter: {
            /** Tasks */
            tasks: string[];
            /** Groups */
            groups: string[];
            /** @default fail */
            on_failure: components["schemas"]["OnFailure"];
            /** Waits For */
            waits_for: string[];
        };
        /**
         * TaskClaimRequest
         * @description Claim the oldest pending task of the worker's jobs, or up to `max` of them.
         *
         *     A claim that is repeated with the same `claim_id`, because its response was lost, gets the same tasks that
         *     the worker still holds. With `start`, each task is claimed and started in one step. With `batches`, which
         *     needs `max`, a claim gets a batch of one of these jobs, or up to `max` tasks of the other jobs. With
         *     `tokens`, each task has a `token` for its code, which is valid for `token_seconds`, an hour by default;
         *     heartbeats renew it. Ask for more where a renewed token does not reach the code.
         *
         *     `remaining_seconds` is how much time the worker has from now on, also while the claim waits: it gets no
         *     task of a job whose `expected_seconds` are more.
         */
        TaskClaimRequest: {
            /**
             * Worker Id
             * Format: uuid
             */
            worker_id: string;
            /** Claim Id */
            claim_id?: string | null;
            /** Max */
            max?: number | null;
            /**
             * Start
             * @description Default: `false`.
             */
            start?: boolean;
            /**
             * Tokens
             * @description Default: `false`.
             */
            tokens?: boolean;
            /** Token Seconds */
            token_seconds?: number | null;
            /** Batches */
            batches?: components["schemas"]["ClaimBatch"][];
            /** Remaining Seconds */
            remaining_seconds?: number | null;
        };
        /**
         * TaskClaimResponse
         * @description The claimed task, or null with the reason.
         *
         *     The response to a claim with `max` has `tasks` instead, oldest first; if there are none, with the reason.
         */
        TaskClaimResponse: {
            task?: components["schemas"]["TaskResponse"] | null;
            /** Tasks */
            tasks?: components["schemas"]["TaskResponse"][];
            reason?: components["schemas"]["EmptyReason"] | null;
        };
        /**
         * TaskCounts
         * @description How many tasks have each status: all, or those of a tree or of tags.
         *
         *     Of the latter at most the newest 10,000 are counted; `is_complete` is false if there are more.
         */
        TaskCounts: {
            /**
             * Pending
             * @default 0
             */
            pending: number;
            /**
             * Claimed
             * @default 0
             */
            claimed: number;
            /**
             * Running
             * @default 0
             */
            running: number;
            /**
             * Completed
             * @default 0
             */
            completed: number;
            /**
             * Failed
             * @default 0
             */
            failed: number;
            /**
             * Cancelled
             * @default 0
             */
            cancelled: number;
            /**
             * Is Complete
             * @default true
             */
            is_complete: boolean;
        };
        /**
         * TaskEvents
         * @description Events of a task. Without a position, or after `resync`, its state comes first.
         */
        TaskEvents: {
            resync?: components["schemas"]["Resync"] | null;
            /** Events */
            events: components["schemas"]["StreamEvent"][];
            /** Next */
            next: number;
            /**
             * Ended
             * @default false
             */
            ended: boolean;
            snapshot?: components["schemas"]["TaskResponse"] | null;
        };
        /**
         * TaskExplanation
         * @description Why a task has its status: all reasons that apply, the most important one first.
         *
         *     `wait_seconds`: about how long a queued task waits at the current rate of its job; null if unknown.
         */
        TaskExplanation: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            status: components["schemas"]["TaskStatus"];
            /** Queue Position */
            queue_position: number | null;
            /** Reasons */
            reasons: components["schemas"]["Reason"][];
            /** Wait Seconds */
            wait_seconds: number | null;
        };
        /**
         * TaskFilter
         * @description Which tasks to find: a task has to match every field that is given, and any value of a list.
         *
         *     `job` has full names of jobs (``room:category:name``), `room` ids of rooms. `worker` is the id of the
         *     current or last worker. `error_code` is as in a task. `exception` has texts before the first colon of the
         *     error, where Python workers write the class of the exception: ``ValueError``. `text` is part of the
         *     payload as JSON text, or of the error; the letters a to z match without regard to case. Times are those of
         *     creation: `since` is included, `until` is not. `version` has numbers of versions, and needs `job`.
         *     `scheduled`: pending tasks that are not due yet; if false, all others. `tag` has tags of tasks. `parent`
         *     is the task that has submitted them, `root` the first task of their tree, which does not match itself.
         *     `group` is the id of a group.
         */
        TaskFilter: {
            /** Status */
            status?: components["schemas"]["TaskStatus"][];
            /** Job */
            job?: string[];
            /** Room */
            room?: string[];
            /** Worker */
            worker?: string | null;
            /** Created By */
            created_by?: string | null;
            /** Error Code */
            error_code?: string[];
            /** Exception */
            exception?: string[];
            /** Text */
            text?: string | null;
            /** Since */
            since?: string | null;
            /** Until */
            until?: string | null;
            /** Version */
            version?: number[];
            /** Scheduled */
            scheduled?: boolean | null;
            /** Tag */
            tag?: string[];
            /** Parent */
            parent?: string | null;
            /** Root */
            root?: string | null;
            /** Group */
            group?: string | null;
        };
        /**
         * TaskHistory
         * @description All transitions of a task, oldest first, and the details of its last 20 attempts.
         *
         *     An attempt without details is not in `attempts`.
         */
        TaskHistory: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Transitions */
            transitions: components["schemas"]["Transition"][];
            /** Attempts */
            attempts: components["schemas"]["AttemptDetail"][];
        };
        /**
         * TaskLog
         * @description Lines of the log of one attempt, oldest first.
         *
         *     `last` is the number of the last line so far, and `dropped` how many of them are not kept. `next` is the
         *     `after` of the request that reads on; null if there are no more lines yet.
         */
        TaskLog: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Attempt */
            attempt: number;
            /** Lines */
            lines: components["schemas"]["NumberedLine"][];
            /** Last */
            last: number;
            /** Dropped */
            dropped: number;
            /** Next */
            next: number | null;
        };
        /**
         * TaskPage
         * @description One page of a list of tasks, newest first; `total` counts the whole list.
         */
        TaskPage: {
            /** Items */
            items: components["schemas"]["TaskResponse"][];
            /** Total */
            total: number;
            /** Limit */
            limit: number;
            /** Offset */
            offset: number;
        };
        /**
         * TaskReport
         * @description A report of the task `id`, with the same fields as a report of a single task.
         */
        TaskReport: {
            status?: components["schemas"]["TaskStatus"] | null;
            /** Error */
            error?: string | null;
            /** Result */
            result?: unknown;
            /** Worker Id */
            worker_id?: string | null;
            /** Attempt */
            attempt?: number | null;
            /**
             * Retry
             * @description Default: `true`.
             */
            retry?: boolean;
            /** Retry After Seconds */
            retry_after_seconds?: number | null;
            /** Error Types */
            error_types?: string[];
            /** Error Code */
            error_code?: ("result-not-serializable" | "predecessor-result-invalid" | "worker-lost") | null;
            progress?: components["schemas"]["Progress"] | null;
            log?: components["schemas"]["LogPart"] | null;
            failure?: components["schemas"]["Failure"] | null;
            /** Started Ago */
            started_ago?: number | null;
            /** Ended Ago */
            ended_ago?: number | null;
            /**
             * Tree
             * @description Default: `false`.
             */
            tree?: boolean;
            /**
             * Id
             * Format: uuid
             */
            id: string;
        };
        /**
         * TaskResponse
         * @description A task.
         *
         *     - `queue_position`: the place of a waiting task in the job's queue, from 1; null for other tasks.
         *     - `attempt`: the fencing token; it grows with every claim, and a worker's report may carry it.
         *     - `attempts`: how many attempts have begun. A claim that is released before its start is none.
         *     - `error`, `error_code`: why the task, or its last attempt, ended without success. The code is ``error``
         *       for a failure that a worker reported, or the last part of a URL under ``/v1/problems/``.
         *     - `run_at`: when the task enters its queue, because its submitter set a time, or before a retry.
         *     - `expires_at`: when the task fails if no worker has claimed it; null after the claim.
         *     - `progress`, `failure`: the last progress of its current or last attempt, and the exception that
         *       ended it, without the full traceback. Only responses to requests that read tasks have them, and only if
         *       there are any.
         *     - `stored_result`: the result, if it is kept as bytes.
         *     - `traceparent`: the trace context of its submit, if it had one; only in responses to claims.
         *     - `unique_key`: the key that no other task may hold at the same time, only in responses to submits and to
         *       requests that read tasks, and only if there is one.
         *     - `duplicate`: true in the response to a submit that made no task, because this one holds its key.
         *     - `schedule`, `due_at`: the schedule of its room that submitted it, and the due time. They are omitted for
         *       other tasks, and `due_at` for a schedule's task that was run by hand.
         *     - `version`: the number of the job's schema that its payload was validated against.
         *     - `tags`, `parent`: as in its submit. `root` is the first task of its tree: the parent of its parent, and
         *       so on. They are omitted for tasks without them, and in the responses to claims and to reports of a start
         *       or an end. The ids stay when those tasks are deleted.
         *     - `group`: the group that it belongs to, only in responses to submits and to requests that read tasks.
         *     - `waits`: true while it is pending because of its predecessors. `after`: what it waits for, or has waited
         *       for. `successors`: the first hundred tasks that wait for it, or have waited. The last two are only in
         *       responses to requests that read one task.
         *     - `requires`: what its submit requires of the labels of its worker, besides its job; only in responses to
         *       claims, to submits and to requests that read one task.
         *     - `cost`: how many slots of its worker it takes, if these are several; only in responses to claims, to
         *       submits that have said so, and to requests that read one task.
         *     - `token`: a bearer token with the rights of this claim alone; only in responses to claims with `tokens`.
         */
        TaskResponse: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Job Name */
            job_name: string;
            /** Room Id */
            room_id: string;
            status: components["schemas"]["TaskStatus"];
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Started At */
            started_at: string | null;
            /** Completed At */
            completed_at: string | null;
            /** Worker Id */
            worker_id: string | null;
            /** Error */
            error: string | null;
            /** Payload */
            payload: {
                [key: string]: unknown;
            };
            /** Queue Position */
            queue_position: number | null;
            /**
             * Attempt
             * @default 0
             */
            attempt: number;
            /**
             * Attempts
             * @default 0
             */
            attempts: number;
            /** Created By */
            created_by: string | null;
            /** Result */
            result: unknown;
            /** Error Code */
            error_code: string | null;
            /**
             * Priority
             * @default 0
             */
            priority: number;
            /** Run At */
            run_at: string | null;
            /** Expires At */
            expires_at: string | null;
            progress?: components["schemas"]["Progress"] | null;
            failure?: components["schemas"]["Failure"] | null;
            stored_result?: components["schemas"]["StoredResult"] | null;
            /** Traceparent */
            traceparent?: string | null;
            /** Unique Key */
            unique_key?: string | null;
            /** Duplicate */
            duplicate?: true | null;
            /** Schedule */
            schedule?: string | null;
            /** Due At */
            due_at?: string | null;
            /**
             * Version
             * @default 1
             */
            version: number;
            /** Tags */
            tags?: string[] | null;
            /** Parent */
            parent?: string | null;
            /** Root */
            root?: string | null;
            /** Group */
            group?: string | null;
            /** Waits */
            waits?: true | null;
            after?: components["schemas"]["TaskAfter"] | null;
            /** Successors */
            successors?: string[] | null;
            /** Requires */
            requires?: {
                [key: string]: unknown;
            } | null;
            /** Cost */
            cost?: number | null;
            /** Token */
            token?: string | null;
        };
        /**
         * TaskStatus
         * @description The status of a task; the value is the one on the wire and in the database.
         * @enum {string}
         */
        TaskStatus: "pending" | "claimed" | "running" | "completed" | "failed" | "cancelled";
        /**
         * TaskStatusEvent
         * @description Sent to a room: one of its tasks has a new status.
         */
        TaskStatusEvent: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /** Name */
            name: string;
            /** Room Id */
            room_id: string;
            status: components["schemas"]["TaskStatus"];
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Started At */
            started_at?: string | null;
            /** Completed At */
            completed_at?: string | null;
            /** Queue Position */
            queue_position?: number | null;
            /** Worker Id */
            worker_id?: string | null;
            /** Error */
            error?: string | null;
        };
        /**
         * TaskSubmitRequest
         * @description Submit a task with `payload`.
         *
         *     `priority` and `max_attempts` override those of the job. The task enters its queue at `run_at`, or
         *     `delay_seconds` from now, by default at once. It fails if no worker claims it within `expires_in_seconds`
         *     from now. With `unique`, no second task with the same key is submitted; with `debounce` besides, each
         *     submit with the key postpones the task and replaces its payload. Unknown fields are ignored, but one that
         *     resembles a field is refused.
         *
         *     `tags` are texts by which tasks are found, at most 10 of at most 64 characters; one that is repeated
         *     counts once. `parent` is the id of the task of the same room that submits this one. `group` is the id
         *     of a group of the same room, which the task belongs to. `webhook` gets the end of the task,
         *     but not that of another task which holds the key.
         *
         *     `after` are tasks and groups of the same room that the task waits for. Then values ``{"$result": {"task":
         *     id, "pointer": "/x"}}`` of the payload are replaced by these parts of the results of its predecessors
         *     before a worker gets it. Its priority is by default the highest of its job and its predecessors.
         *
         *     `requires` are conditions on the labels of the worker that may run it, besides those of the job, which it
         *     may only narrow. `cost` is how many slots of its worker it takes; it may only raise that of the job.
         *     `prefer` are conditions on the labels of workers that get it first, if they wait for a task now.
         */
        TaskSubmitRequest: {
            /** Payload */
            payload?: {
                [key: string]: unknown;
            };
            /** Priority */
            priority?: number | null;
            /** Run At */
            run_at?: string | null;
            /** Delay Seconds */
            delay_seconds?: number | null;
            /** Expires In Seconds */
            expires_in_seconds?: number | null;
            /** Max Attempts */
            max_attempts?: number | null;
            unique?: components["schemas"]["Unique"] | null;
            debounce?: components["schemas"]["Debounce"] | null;
            /** Tags */
            tags?: string[] | null;
            /** Parent */
            parent?: string | null;
            /** Group */
            group?: string | null;
            webhook?: components["schemas"]["TaskWebhook"] | null;
            after?: components["schemas"]["After"] | null;
            /** Requires */
            requires?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
            /** Cost */
            cost?: number | null;
            /** Prefer */
            prefer?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
        };
        /**
         * TaskToSubmit
         * @description A task to submit from the room `room_id`; `job_name` is the full name of its job.
         *
         *     In a batch that is not atomic, `idempotency_key` is a key for this task alone: the same task with the same
         *     key is submitted once, in whatever batch it is. It takes the place of the header `Idempotency-Key`.
         */
        TaskToSubmit: {
            /** Payload */
            payload?: {
                [key: string]: unknown;
            };
            /** Priority */
            priority?: number | null;
            /** Run At */
            run_at?: string | null;
            /** Delay Seconds */
            delay_seconds?: number | null;
            /** Expires In Seconds */
            expires_in_seconds?: number | null;
            /** Max Attempts */
            max_attempts?: number | null;
            unique?: components["schemas"]["Unique"] | null;
            debounce?: components["schemas"]["Debounce"] | null;
            /** Tags */
            tags?: string[] | null;
            /** Parent */
            parent?: string | null;
            /** Group */
            group?: string | null;
            webhook?: components["schemas"]["TaskWebhook"] | null;
            after?: components["schemas"]["After"] | null;
            /** Requires */
            requires?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
            /** Cost */
            cost?: number | null;
            /** Prefer */
            prefer?: {
                [key: string]: number | string | {
                    [key: string]: number | string | (number | string)[];
                };
            } | null;
            /** Room Id */
            room_id: string;
            /** Job Name */
            job_name: string;
            /** Idempotency Key */
            idempotency_key?: string | null;
        };
        /**
         * TaskUpdateRequest
         * @description Report on a task. `worker_id` and `attempt`, if given, must be those of the claim.
         *
         *     A report has a new `status`, or what the job did: `progress` and lines of the `log`, or both. Only a task
         *     that is held has the latter. The status ``pending`` releases the task. `error_code` says why a success is
         *     reported as a failure, that the payload needs a part of a result that does not exist, or, with
         *     ``worker-lost``, that what ran the task for the worker was lost: the policy decides as for a lost worker.
         *
         *     With the status ``cancelled`` and `tree`, all tasks below the task are cancelled too: its children,
         *     theirs, and so on. Then the task itself may have ended.
         *
         *     Only a report with the status ``failed`` has the following. `failure` is the exception, and `error_types`
         *     are the names of its class and base classes, which the policy's `non_retryable` may name. With `retry`
         *     false the failure is final, whatever the job's policy is. With `retry_after_seconds` the task is tried
         *     again after this pause, if `max_attempts` allows one more attempt.
         *
         *     `started_ago` and `ended_ago` are how many seconds before this request the run began and ended, by the
         *     worker's monotonic clock: `started_at` and `completed_at` are when that was, instead of when the report
         *     arrives. An end counts as at most 2 seconds ago, and nothing as before the claim.
         */
        TaskUpdateRequest: {
            status?: components["schemas"]["TaskStatus"] | null;
            /** Error */
            error?: string | null;
            /** Result */
            result?: unknown;
            /** Worker Id */
            worker_id?: string | null;
            /** Attempt */
            attempt?: number | null;
            /**
             * Retry
             * @description Default: `true`.
             */
            retry?: boolean;
            /** Retry After Seconds */
            retry_after_seconds?: number | null;
            /** Error Types */
            error_types?: string[];
            /** Error Code */
            error_code?: ("result-not-serializable" | "predecessor-result-invalid" | "worker-lost") | null;
            progress?: components["schemas"]["Progress"] | null;
            log?: components["schemas"]["LogPart"] | null;
            failure?: components["schemas"]["Failure"] | null;
            /** Started Ago */
            started_ago?: number | null;
            /** Ended Ago */
            ended_ago?: number | null;
            /**
             * Tree
             * @description Default: `false`.
             */
            tree?: boolean;
        };
        /**
         * TaskVerdict
         * @description The verdict on one task that a worker named, with a new `token` of it if the heartbeat asked.
         */
        TaskVerdict: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            verdict: components["schemas"]["Verdict"];
            /** Token */
            token?: string | null;
        };
        /**
         * TaskWebhook
         * @description Send the end of a task to a URL, signed if there is a `secret`.
         *
         *     `events`: which ends, by default all. Deliveries to the same URL with the same secret keep their order.
         */
        TaskWebhook: {
            /** Url */
            url: string;
            /** Events */
            events?: ("task.completed" | "task.failed" | "task.cancelled")[];
            /** Secret */
            secret?: string | null;
        };
        /**
         * Transition
         * @description A change of a task's status. `attempt` counts its claims; `worker_id` held it before or after.
         *
         *     `attempt_number` counts its attempts. It is null before the first claim, and for a claim that ended before
         *     its start, which is no attempt. A task that has waited for others is pending twice: the second has the
         *     `reason` `wait_ended`, and the time at which they had ended or it was run by hand.
         */
        Transition: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            status: components["schemas"]["TaskStatus"];
            /** Attempt */
            attempt: number;
            /** Attempt Number */
            attempt_number: number | null;
            /** Worker Id */
            worker_id: string | null;
            /** Reason */
            reason: string | null;
            /** Error */
            error: string | null;
            /** Run At */
            run_at: string | null;
        };
        /**
         * Unique
         * @description Submit a task only if no other task of its job holds the same key.
         *
         *     - `key`: by default the SHA-256, as hexadecimal digits, of the payload's canonical JSON (RFC 8785).
         *     - `scope`: `room` if each room has keys of its own, `job` if all rooms of the job share them.
         *     - `until`: the task holds the key until it has `ended`, also while it waits for a retry, or until it has
         *       `started` for the first time.
         *     - `for_seconds`: instead of `until`, the task holds the key for this time from its submit, even if it ends
         *       earlier or later.
         *     - `on_conflict`: with `return`, the answer is the task that holds the key, with `duplicate`. With `reject`
         *       it is the problem `duplicate-task`. With `replace`, a task that is pending gets the new payload and
         *       options, and keeps its id and its place in the queue; otherwise it is like `return`.
         */
        Unique: {
            /** Key */
            key?: string | null;
            /**
             * Scope
             * @description Default: `"room"`.
             * @enum {string}
             */
            scope?: "job" | "room";
            /**
             * Until
             * @description Default: `"ended"`.
             * @enum {string}
             */
            until?: "started" | "ended";
            /** For Seconds */
            for_seconds?: number | null;
            /**
             * On Conflict
             * @description Default: `"return"`.
             * @enum {string}
             */
            on_conflict?: "return" | "reject" | "replace";
        };
        /**
         * Verdict
         * @description What a worker has to do with a task that it named in a heartbeat.
         *
         *     `continue`: the worker holds the task. `cancel`: the task was cancelled while the worker held it. `lost`:
         *     the worker does not hold the task: it ended, was claimed again, or does not exist.
         * @enum {string}
         */
        Verdict: "continue" | "cancel" | "lost";
        /**
         * Version
         * @description The release of the server that responds: of the package, of Python, and of the database's schema.
         *
         *     `socketio` is false if the server sends no Socket.IO events. `page` is the URL of the operators' page,
         *     relative to the URL that clients have, like ``./``; null if the server has none.
         */
        Version: {
            /** Version */
            version: string;
            /** Build */
            build: string | null;
            /** Python */
            python: string;
            /** Database */
            database: string;
            /** Schema Version */
            schema_version: string;
            /**
             * Socketio
             * @default true
             */
            socketio: boolean;
            /** Page */
            page: string | null;
        };
        /**
         * WaitsFor
         * @description What a pending task waits for, beside a free slot.
         *
         *     `predecessor`: the ends of other tasks or groups. `time`: its due time. `resume`: its job, its room or all
         *     rooms are paused. `worker`: no worker serves its job.
         * @enum {string}
         */
        WaitsFor: "predecessor" | "time" | "resume" | "worker";
        /**
         * WebhookPage
         * @description One page of the webhooks of a room, by name; `total` counts the whole list.
         */
        WebhookPage: {
            /** Items */
            items: components["schemas"]["WebhookResponse"][];
            /** Total */
            total: number;
            /** Limit */
            limit: number;
            /** Offset */
            offset: number;
        };
        /**
         * WebhookRequest
         * @description Create a webhook of a room, or replace it; then it is enabled.
         *
         *     - `events`: by default all ends of tasks and groups.
         *     - `secret`: signs each delivery; ``whsec_`` and 24 to 64 bytes as base64. Omitted, a webhook that exists
         *       keeps its own, and a new one sends unsigned requests. No answer has it.
         *     - `previous_secret_seconds`: for how long the secret that a new one replaces signs too.
         */
        WebhookRequest: {
            /** Url */
            url: string;
            /** Events */
            events?: ("task.started" | "task.completed" | "task.failed" | "task.cancelled" | "group.ended")[];
            /** Secret */
            secret?: string | null;
            /**
             * Previous Secret Seconds
             * @description Default: `86400`.
             */
            previous_secret_seconds?: number;
        };
        /**
         * WebhookResponse
         * @description A webhook of a room.
         *
         *     - `is_signed`: whether it has a secret. `previous_secret_until`: until when the one before signs too.
         *     - `state`: `active`; `failing` while deliveries fail, the next attempt is at `next_attempt_at`; or
         *       `disabled` since `disabled_at`, for `disabled_reason`: to write it again enables it.
         *     - `failures`: how many attempts failed since the last success; `last_error` says why.
         *     - `waiting`: how many deliveries wait, counted up to 10,000.
         */
        WebhookResponse: {
            /** Room Id */
            room_id: string;
            /** Name */
            name: string;
            /** Url */
            url: string;
            /** Events */
            events: string[];
            /** Is Signed */
            is_signed: boolean;
            /** Previous Secret Until */
            previous_secret_until: string | null;
            /** Created By */
            created_by: string;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /**
             * Updated At
             * Format: date-time
             */
            updated_at: string;
            /**
             * State
             * @enum {string}
             */
            state: "active" | "failing" | "disabled";
            /** Disabled At */
            disabled_at: string | null;
            /** Disabled Reason */
            disabled_reason: string | null;
            /** Failures */
            failures: number;
            /** Last Error */
            last_error: string | null;
            /** Next Attempt At */
            next_attempt_at: string | null;
            /** Waiting */
            waiting: number;
        };
        /**
         * WithoutWorkers
         * @description What happens to a job without workers.
         *
         *     `forget`: it is soft-deleted with its last worker, or later with its last pending task; a submit then gets
         *     404. `reject`: it stays, and a submit gets 409 `no-workers-available`. `queue`: it stays, and tasks wait.
         * @enum {string}
         */
        WithoutWorkers: "forget" | "reject" | "queue";
        /**
         * WorkerDetail
         * @description A worker with its current tasks, the newest first, at most 100.
         */
        WorkerDetail: {
            /** Name */
            name: string | null;
            /** Host */
            host: string | null;
            /** Pid */
            pid: number | null;
            /** Version */
            version: string | null;
            /** Slots */
            slots: number | null;
            /** Labels */
            labels: {
                [key: string]: number | string;
            } | null;
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /**
             * Last Heartbeat
             * Format: date-time
             */
            last_heartbeat: string;
            /** Job Count */
            job_count: number;
            state: components["schemas"]["WorkerState"] | null;
            /** Max Tasks */
            max_tasks: number | null;
            /** Owner Id */
            owner_id: string | null;
            /** Created At */
            created_at: string | null;
            /** Jobs */
            jobs: string[];
            /** Held */
            held: number | null;
            /** Running */
            running: number | null;
            /** Ends At */
            ends_at?: string | null;
            /** Tasks */
            tasks: components["schemas"]["FoundTask"][];
        };
        /**
         * WorkerInfo
         * @description What the process of a worker says about itself; all fields are optional.
         *
         *     `name` is for people, by default the name of the host. `version` is that of its package, `slots` how many
         *     tasks it runs at once. `labels` are what tasks may require of it.
         */
        WorkerInfo: {
            /** Name */
            name?: string | null;
            /** Host */
            host?: string | null;
            /** Pid */
            pid?: number | null;
            /** Version */
            version?: string | null;
            /** Slots */
            slots?: number | null;
            /** Labels */
            labels?: {
                [key: string]: number | string;
            } | null;
        };
        /**
         * WorkerPage
         * @description One page of a list of workers, newest first; `total` counts the whole list.
         */
        WorkerPage: {
            /** Items */
            items: components["schemas"]["WorkerSummary"][];
            /** Total */
            total: number;
            /** Limit */
            limit: number;
            /** Offset */
            offset: number;
        };
        /**
         * WorkerResponse
         * @description A worker; it has to send a heartbeat every `heartbeat_interval_seconds`.
         *
         *     `drain`: an operator drains the worker: it has to claim no more, finish its tasks, and disconnect.
         *     `tasks` has a verdict for each task that the heartbeat named, in the same order.
         */
        WorkerResponse: {
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /**
             * Last Heartbeat
             * Format: date-time
             */
            last_heartbeat: string;
            /** Heartbeat Interval Seconds */
            heartbeat_interval_seconds: number;
            /**
             * Drain
             * @default false
             */
            drain: boolean;
            /** Tasks */
            tasks: components["schemas"]["TaskVerdict"][];
        };
        /**
         * WorkerState
         * @description `active`: it sends heartbeats. `silent`: it has not for two intervals. `draining`: it finishes.
         * @enum {string}
         */
        WorkerState: "active" | "silent" | "draining";
        /**
         * WorkerSummary
         * @description A worker in a list; `job_count` is the number of jobs it serves.
         *
         *     `name` to `slots` are what the worker said about itself. `jobs` are the jobs that the caller may see, at
         *     most 100; `held` is how many tasks are claimed by the worker or run in it, and `running` how many of them
         *     run. `ends_at` is when its allocation on a cluster ends. `owner_id`, `host` and `pid` are null unless the
         *     caller owns the worker or is a superuser. Of a worker that serves no job that the caller may see, only
         *     `id`, `last_heartbeat`, `job_count` and `state` are known. Servers before 1.0 return only the first three.
         */
        WorkerSummary: {
            /** Name */
            name: string | null;
            /** Host */
            host: string | null;
            /** Pid */
            pid: number | null;
            /** Version */
            version: string | null;
            /** Slots */
            slots: number | null;
            /** Labels */
            labels: {
                [key: string]: number | string;
            } | null;
            /**
             * Id
             * Format: uuid
             */
            id: string;
            /**
             * Last Heartbeat
             * Format: date-time
             */
            last_heartbeat: string;
            /** Job Count */
            job_count: number;
            state: components["schemas"]["WorkerState"] | null;
            /** Max Tasks */
            max_tasks: number | null;
            /** Owner Id */
            owner_id: string | null;
            /** Created At */
            created_at: string | null;
            /** Jobs */
            jobs: string[];
            /** Held */
            held: number | null;
            /** Running */
            running: number | null;
            /** Ends At */
            ends_at?: string | null;
        };
        /**
         * WorkerTokenRequest
         * @description Issue a token whose workers register and serve only these jobs, in these rooms.
         *
         *     `jobs` are full names or patterns like ``lab:*``. The workers claim at most `max_tasks` tasks together.
         *     The token ends after `expires_in_seconds`. Its workers have these `labels`, whatever they say about
         *     themselves.
         */
        WorkerTokenRequest: {
            /** Jobs */
            jobs: string[];
            /** Rooms */
            rooms: string[];
            /** Max Tasks */
            max_tasks?: number | null;
            /** Expires In Seconds */
            expires_in_seconds: number;
            /** Labels */
            labels?: {
                [key: string]: number | string;
            } | null;
        };
        /**
         * WorkerTokenResponse
         * @description A token of workers, whose text is only here. `name` is the user that its workers belong to.
         */
        WorkerTokenResponse: {
            /** Name */
            name: string;
            /** Token */
            token: string;
            /** Jobs */
            jobs: string[];
            /** Rooms */
            rooms: string[];
            /** Max Tasks */
            max_tasks: number | null;
            /**
             * Expires At
             * Format: date-time
             */
            expires_at: string;
            /** Labels */
            labels: {
                [key: string]: unknown;
            };
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type After = components['schemas']['After'];
export type AttemptDetail = components['schemas']['AttemptDetail'];
export type AuditEntry = components['schemas']['AuditEntry'];
export type AuditTrail = components['schemas']['AuditTrail'];
export type Backoff = components['schemas']['Backoff'];
export type BatchGroup = components['schemas']['BatchGroup'];
export type BatchReportRequest = components['schemas']['BatchReportRequest'];
export type BatchResponse = components['schemas']['BatchResponse'];
export type BatchResult = components['schemas']['BatchResult'];
export type BatchSubmitRequest = components['schemas']['BatchSubmitRequest'];
export type BulkAction = components['schemas']['BulkAction'];
export type BulkPreview = components['schemas']['BulkPreview'];
export type BulkPreviewRequest = components['schemas']['BulkPreviewRequest'];
export type BulkRequest = components['schemas']['BulkRequest'];
export type BulkResult = components['schemas']['BulkResult'];
export type CatchUp = components['schemas']['CatchUp'];
export type ClaimBatch = components['schemas']['ClaimBatch'];
export type ClaimedProviderRequest = components['schemas']['ClaimedProviderRequest'];
export type Debounce = components['schemas']['Debounce'];
export type Deliveries = components['schemas']['Deliveries'];
export type Delivery = components['schemas']['Delivery'];
export type Demand = components['schemas']['Demand'];
export type EmptyReason = components['schemas']['EmptyReason'];
export type EventKind = components['schemas']['EventKind'];
export type Failure = components['schemas']['Failure'];
export type FailureGroup = components['schemas']['FailureGroup'];
export type FailureGroups = components['schemas']['FailureGroups'];
export type Finding = components['schemas']['Finding'];
export type FoundTask = components['schemas']['FoundTask'];
export type FoundTasks = components['schemas']['FoundTasks'];
export type GroupEntries = components['schemas']['GroupEntries'];
export type GroupEvents = components['schemas']['GroupEvents'];
export type GroupFailure = components['schemas']['GroupFailure'];
export type GroupOnEnd = components['schemas']['GroupOnEnd'];
export type GroupRequest = components['schemas']['GroupRequest'];
export type GroupResponse = components['schemas']['GroupResponse'];
export type GroupUpdate = components['schemas']['GroupUpdate'];
export type HeartbeatRequest = components['schemas']['HeartbeatRequest'];
export type Histogram = components['schemas']['Histogram'];
export type Interval = components['schemas']['Interval'];
export type JobBatch = components['schemas']['JobBatch'];
export type JobEntries = components['schemas']['JobEntries'];
export type JobEntry = components['schemas']['JobEntry'];
export type JobLimit = components['schemas']['JobLimit'];
export type JobPage = components['schemas']['JobPage'];
export type JobPutRequest = components['schemas']['JobPutRequest'];
export type JobRegisterRequest = components['schemas']['JobRegisterRequest'];
export type JobResponse = components['schemas']['JobResponse'];
export type JobSummary = components['schemas']['JobSummary'];
export type JobVersion = components['schemas']['JobVersion'];
export type Keep = components['schemas']['Keep'];
export type KeptTasks = components['schemas']['KeptTasks'];
export type KeptTime = components['schemas']['KeptTime'];
export type LimitEntry = components['schemas']['LimitEntry'];
export type LimitPage = components['schemas']['LimitPage'];
export type LimitValues = components['schemas']['LimitValues'];
export type LogLevel = components['schemas']['LogLevel'];
export type LogLine = components['schemas']['LogLine'];
export type LogPart = components['schemas']['LogPart'];
export type LogSource = components['schemas']['LogSource'];
export type Me = components['schemas']['Me'];
export type NamedTask = components['schemas']['NamedTask'];
export type NumberedLine = components['schemas']['NumberedLine'];
export type OnEndState = components['schemas']['OnEndState'];
export type OnEndWhen = components['schemas']['OnEndWhen'];
export type OnFailure = components['schemas']['OnFailure'];
export type Overlap = components['schemas']['Overlap'];
export type Overview = components['schemas']['Overview'];
export type PauseEntries = components['schemas']['PauseEntries'];
export type PauseEntry = components['schemas']['PauseEntry'];
export type PauseRequest = components['schemas']['PauseRequest'];
export type PauseState = components['schemas']['PauseState'];
export type Permission = components['schemas']['Permission'];
export type PlannedChange = components['schemas']['PlannedChange'];
export type PrefixMatches = components['schemas']['PrefixMatches'];
export type Problem = components['schemas']['Problem'];
export type Progress = components['schemas']['Progress'];
export type ProviderClaimRequest = components['schemas']['ProviderClaimRequest'];
export type ProviderClaimResponse = components['schemas']['ProviderClaimResponse'];
export type ProviderEntries = components['schemas']['ProviderEntries'];
export type ProviderEntry = components['schemas']['ProviderEntry'];
export type ProviderPage = components['schemas']['ProviderPage'];
export type ProviderRegisterRequest = components['schemas']['ProviderRegisterRequest'];
export type ProviderResponse = components['schemas']['ProviderResponse'];
export type Rate = components['schemas']['Rate'];
export type Readiness = components['schemas']['Readiness'];
export type Reason = components['schemas']['Reason'];
export type RefusedTask = components['schemas']['RefusedTask'];
export type RequirementDemand = components['schemas']['RequirementDemand'];
export type Resync = components['schemas']['Resync'];
export type ResyncReason = components['schemas']['ResyncReason'];
export type RetryOn = components['schemas']['RetryOn'];
export type RoomEntries = components['schemas']['RoomEntries'];
export type RoomEntry = components['schemas']['RoomEntry'];
export type RoomEvents = components['schemas']['RoomEvents'];
export type RoomOverview = components['schemas']['RoomOverview'];
export type RoomSnapshot = components['schemas']['RoomSnapshot'];
export type ScheduleEntries = components['schemas']['ScheduleEntries'];
export type SchedulePage = components['schemas']['SchedulePage'];
export type ScheduleRequest = components['schemas']['ScheduleRequest'];
export type ScheduleResponse = components['schemas']['ScheduleResponse'];
export type ScheduleTimes = components['schemas']['ScheduleTimes'];
export type ScheduleUpdate = components['schemas']['ScheduleUpdate'];
export type ServerCycle = components['schemas']['ServerCycle'];
export type ServerEntry = components['schemas']['ServerEntry'];
export type SettingEntry = components['schemas']['SettingEntry'];
export type Settings = components['schemas']['Settings'];
export type Severity = components['schemas']['Severity'];
export type Statistics = components['schemas']['Statistics'];
export type StatusCounts = components['schemas']['StatusCounts'];
export type StoredResult = components['schemas']['StoredResult'];
export type StreamEvent = components['schemas']['StreamEvent'];
export type StreamToken = components['schemas']['StreamToken'];
export type SweeperCycle = components['schemas']['SweeperCycle'];
export type SweeperDetail = components['schemas']['SweeperDetail'];
export type SweeperMode = components['schemas']['SweeperMode'];
export type SweeperPreview = components['schemas']['SweeperPreview'];
export type SweeperUpdate = components['schemas']['SweeperUpdate'];
export type TagList = components['schemas']['TagList'];
export type TaskActionRequest = components['schemas']['TaskActionRequest'];
export type TaskAfter = components['schemas']['TaskAfter'];
export type TaskClaimRequest = components['schemas']['TaskClaimRequest'];
export type TaskClaimResponse = components['schemas']['TaskClaimResponse'];
export type TaskCounts = components['schemas']['TaskCounts'];
export type TaskEvents = components['schemas']['TaskEvents'];
export type TaskExplanation = components['schemas']['TaskExplanation'];
export type TaskFilter = components['schemas']['TaskFilter'];
export type TaskHistory = components['schemas']['TaskHistory'];
export type TaskLog = components['schemas']['TaskLog'];
export type TaskPage = components['schemas']['TaskPage'];
export type TaskReport = components['schemas']['TaskReport'];
export type TaskResponse = components['schemas']['TaskResponse'];
export type TaskStatus = components['schemas']['TaskStatus'];
export type TaskStatusEvent = components['schemas']['TaskStatusEvent'];
export type TaskSubmitRequest = components['schemas']['TaskSubmitRequest'];
export type TaskToSubmit = components['schemas']['TaskToSubmit'];
export type TaskUpdateRequest = components['schemas']['TaskUpdateRequest'];
export type TaskVerdict = components['schemas']['TaskVerdict'];
export type TaskWebhook = components['schemas']['TaskWebhook'];
export type Transition = components['schemas']['Transition'];
export type Unique = components['schemas']['Unique'];
export type Verdict = components['schemas']['Verdict'];
export type Version = components['schemas']['Version'];
export type WaitsFor = components['schemas']['WaitsFor'];
export type WebhookPage = components['schemas']['WebhookPage'];
export type WebhookRequest = components['schemas']['WebhookRequest'];
export type WebhookResponse = components['schemas']['WebhookResponse'];
export type WithoutWorkers = components['schemas']['WithoutWorkers'];
export type WorkerDetail = components['schemas']['WorkerDetail'];
export type WorkerInfo = components['schemas']['WorkerInfo'];
export type WorkerPage = components['schemas']['WorkerPage'];
export type WorkerResponse = components['schemas']['WorkerResponse'];
export type WorkerState = components['schemas']['WorkerState'];
export type WorkerSummary = components['schemas']['WorkerSummary'];
export type WorkerTokenRequest = components['schemas']['WorkerTokenRequest'];
export type WorkerTokenResponse = components['schemas']['WorkerTokenResponse'];
export type $defs = Record<string, never>;
export interface operations {
    searchTasks: {
        parameters: {
            query?: {
                /** @description The oldest tasks first. */
                oldest_first?: boolean;
                status?: components["schemas"]["TaskStatus"][];
                /** @description Full names of jobs. */
                job?: string[];
                /** @description Numbers of versions of these jobs. */
                version?: number[];
                room?: string[];
                /** @description The current or last worker. */
                worker?: string;
                created_by?: string;
                error_code?: string[];
                /** @description Texts before the first colon of the error. */
                exception?: string[];
                /** @description Part of the payload as JSON, or of the error. */
                text?: string;
                /** @description Created at this time or later. */
                since?: string;
                /** @description Created before this time. */
                until?: string;
                /** @description Pending and not due yet; false: all others. */
                scheduled?: boolean;
                /** @description Tags of tasks; a task has one of them. */
                tag?: string[];
                /** @description The task that has submitted them. */
                parent?: string;
                /** @description The first task of their tree, without itself. */
                root?: string;
                group?: string;
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FoundTasks"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    countTasks: {
        parameters: {
            query?: {
                room?: string[];
                /** @description Tags of tasks; a task has one of them. */
                tag?: string[];
                /** @description The task that has submitted them. */
                parent?: string;
                /** @description The first task of their tree, without itself. */
                root?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskCounts"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listTags: {
        parameters: {
            query?: {
                /** @description The first characters of a tag. */
                prefix?: string;
                room?: string[];
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TagList"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    groupFailures: {
        parameters: {
            query?: {
                status?: components["schemas"]["TaskStatus"][];
                /** @description Full names of jobs. */
                job?: string[];
                /** @description Numbers of versions of these jobs. */
                version?: number[];
                room?: string[];
                /** @description The current or last worker. */
                worker?: string;
                created_by?: string;
                error_code?: string[];
                /** @description Texts before the first colon of the error. */
                exception?: string[];
                /** @description Part of the payload as JSON, or of the error. */
                text?: string;
                /** @description Created at this time or later. */
                since?: string;
                /** @description Created before this time. */
                until?: string;
                /** @description Pending and not due yet; false: all others. */
                scheduled?: boolean;
                /** @description Tags of tasks; a task has one of them. */
                tag?: string[];
                /** @description The task that has submitted them. */
                parent?: string;
                /** @description The first task of their tree, without itself. */
                root?: string;
                group?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FailureGroups"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    submitTask: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
                /** @description The trace context of the submit (W3C Trace Context), kept with the task for its workers. An invalid one is ignored. */
                traceparent?: string;
            };
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TaskSubmitRequest"];
            };
        };
        responses: {
            /** @description The task that holds the unique key already */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description Accepted */
            202: {
                headers: {
                    /** @description The path of the task. */
                    Location?: string;
                    /** @description Seconds to wait before the task is read. */
                    "Retry-After"?: string;
                    /** @description How many submits the caller may still make, and the seconds until it has all of them. */
                    RateLimit?: string;
                    /** @description How many tasks a caller may submit, and in how many seconds, if that is limited. */
                    "RateLimit-Policy"?: string;
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "id": "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60",
                     *       "job_name": "@global:modifiers:Rotate",
                     *       "room_id": "lab",
                     *       "status": "pending",
                     *       "created_at": "2026-03-01T12:00:00.000000Z",
                     *       "started_at": null,
                     *       "completed_at": null,
                     *       "worker_id": null,
                     *       "error": null,
                     *       "payload": {
                     *         "angle": 90
                     *       },
                     *       "queue_position": 1,
                     *       "attempt": 0,
                     *       "attempts": 0,
                     *       "created_by": "ada",
                     *       "result": null,
                     *       "error_code": null,
                     *       "priority": 0,
                     *       "run_at": null,
                     *       "expires_at": null,
                     *       "version": 1
                     *     }
                     */
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `group-not-found`, `job-not-found`, `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `duplicate-task`, `group-sealed`, `no-workers-available`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-payload`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-job-not-configured`, `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    claimTask: {
        parameters: {
            query?: never;
            header?: {
                /** @description `wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`. */
                Prefer?: string;
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TaskClaimRequest"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    /** @description `wait=N`, if the request preferred to wait. */
                    "Preference-Applied"?: string;
                    /** @description Seconds to wait before the next claim, if a limit or a pause applies. */
                    "Retry-After"?: string;
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "task": {
                     *         "id": "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60",
                     *         "job_name": "@global:modifiers:Rotate",
                     *         "room_id": "lab",
                     *         "status": "claimed",
                     *         "created_at": "2026-03-01T12:00:00.000000Z",
                     *         "started_at": null,
                     *         "completed_at": null,
                     *         "worker_id": "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11",
                     *         "error": null,
                     *         "payload": {
                     *           "angle": 90
                     *         },
                     *         "queue_position": null,
                     *         "attempt": 1,
                     *         "attempts": 1,
                     *         "created_by": "ada",
                     *         "result": null,
                     *         "error_code": null,
                     *         "priority": 0,
                     *         "run_at": null,
                     *         "expires_at": null,
                     *         "version": 1
                     *       },
                     *       "reason": null
                     *     }
                     */
                    "application/json": components["schemas"]["TaskClaimResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getTask: {
        parameters: {
            query?: never;
            header?: {
                /** @description `wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`. */
                Prefer?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    /** @description `wait=N`, if the request preferred to wait. */
                    "Preference-Applied"?: string;
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "id": "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60",
                     *       "job_name": "@global:modifiers:Rotate",
                     *       "room_id": "lab",
                     *       "status": "completed",
                     *       "created_at": "2026-03-01T12:00:00.000000Z",
                     *       "started_at": "2026-03-01T12:00:01.000000Z",
                     *       "completed_at": "2026-03-01T12:00:03.000000Z",
                     *       "worker_id": "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11",
                     *       "error": null,
                     *       "payload": {
                     *         "angle": 90
                     *       },
                     *       "queue_position": null,
                     *       "attempt": 1,
                     *       "attempts": 1,
                     *       "created_by": "ada",
                     *       "result": {
                     *         "rotated": 12
                     *       },
                     *       "error_code": null,
                     *       "priority": 0,
                     *       "run_at": null,
                     *       "expires_at": null,
                     *       "version": 1
                     *     }
                     */
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    updateTask: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TaskUpdateRequest"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "id": "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60",
                     *       "job_name": "@global:modifiers:Rotate",
                     *       "room_id": "lab",
                     *       "status": "running",
                     *       "created_at": "2026-03-01T12:00:00.000000Z",
                     *       "started_at": "2026-03-01T12:00:01.000000Z",
                     *       "completed_at": null,
                     *       "worker_id": "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11",
                     *       "error": null,
                     *       "payload": {
                     *         "angle": 90
                     *       },
                     *       "queue_position": null,
                     *       "attempt": 1,
                     *       "attempts": 1,
                     *       "created_by": "ada",
                     *       "result": null,
                     *       "error_code": null,
                     *       "priority": 0,
                     *       "run_at": null,
                     *       "expires_at": null,
                     *       "version": 1
                     *     }
                     */
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-task-transition`, `request-in-progress`, `stale-report` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getTaskHistory: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskHistory"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getTaskLog: {
        parameters: {
            query?: {
                attempt?: number;
                after?: number;
                limit?: number;
            };
            header?: never;
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskLog"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    explainTask: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskExplanation"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    releaseTask: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["TaskActionRequest"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-task-transition`, `request-in-progress`, `stale-report` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    retryTask: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["TaskActionRequest"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `duplicate-task`, `invalid-task-transition`, `request-in-progress`, `stale-report` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    runTaskNow: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["TaskActionRequest"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-task-transition`, `request-in-progress`, `stale-report` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    failTask: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["TaskActionRequest"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-task-transition`, `request-in-progress`, `stale-report` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listTasks: {
        parameters: {
            query?: {
                status?: components["schemas"]["TaskStatus"];
                tag?: string;
                parent?: string;
                root?: string;
                limit?: number;
                offset?: number;
            };
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "items": [
                     *         {
                     *           "id": "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60",
                     *           "job_name": "@global:modifiers:Rotate",
                     *           "room_id": "lab",
                     *           "status": "completed",
                     *           "created_at": "2026-03-01T12:00:00.000000Z",
                     *           "started_at": "2026-03-01T12:00:01.000000Z",
                     *           "completed_at": "2026-03-01T12:00:03.000000Z",
                     *           "worker_id": "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11",
                     *           "error": null,
                     *           "payload": {
                     *             "angle": 90
                     *           },
                     *           "queue_position": null,
                     *           "attempt": 1,
                     *           "attempts": 1,
                     *           "created_by": "ada",
                     *           "result": {
                     *             "rotated": 12
                     *           },
                     *           "error_code": null,
                     *           "priority": 0,
                     *           "run_at": null,
                     *           "expires_at": null,
                     *           "version": 1
                     *         }
                     *       ],
                     *       "total": 1,
                     *       "limit": 50,
                     *       "offset": 0
                     *     }
                     */
                    "application/json": components["schemas"]["TaskPage"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    submitTasks: {
        parameters: {
            query?: never;
            header?: {
                /** @description `return=minimal`: leave the tasks out of the response (RFC 7240). */
                Prefer?: string;
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
                /** @description The trace context of the submit (W3C Trace Context), kept with the task for its workers. An invalid one is ignored. */
                traceparent?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BatchSubmitRequest"];
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    /** @description `return=minimal`, if the request preferred it. */
                    "Preference-Applied"?: string;
                    /** @description How many submits the caller may still make, and the seconds until it has all of them. */
                    RateLimit?: string;
                    /** @description How many tasks a caller may submit, and in how many seconds, if that is limited. */
                    "RateLimit-Policy"?: string;
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "results": [
                     *         {
                     *           "status": 202,
                     *           "id": "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60",
                     *           "task": {
                     *             "id": "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60",
                     *             "job_name": "@global:modifiers:Rotate",
                     *             "room_id": "lab",
                     *             "status": "pending",
                     *             "created_at": "2026-03-01T12:00:00.000000Z",
                     *             "started_at": null,
                     *             "completed_at": null,
                     *             "worker_id": null,
                     *             "error": null,
                     *             "payload": {
                     *               "angle": 90
                     *             },
                     *             "queue_position": 1,
                     *             "attempt": 0,
                     *             "attempts": 0,
                     *             "created_by": "ada",
                     *             "result": null,
                     *             "error_code": null,
                     *             "priority": 0,
                     *             "run_at": null,
                     *             "expires_at": null,
                     *             "version": 1
                     *           }
                     *         }
                     *       ]
                     *     }
                     */
                    "application/json": components["schemas"]["BatchResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `group-not-found`, `job-not-found`, `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `duplicate-task`, `group-sealed`, `no-workers-available`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-payload`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-job-not-configured`, `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    reportTasks: {
        parameters: {
            query?: never;
            header?: {
                /** @description `return=minimal`: leave the tasks out of the response (RFC 7240). */
                Prefer?: string;
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BatchReportRequest"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BatchResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listWorkers: {
        parameters: {
            query?: {
                limit?: number;
                offset?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WorkerPage"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    createWorker: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["WorkerInfo"] | null;
            };
        };
        responses: {
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "id": "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11",
                     *       "last_heartbeat": "2026-03-01T12:00:00.000000Z",
                     *       "heartbeat_interval_seconds": 20,
                     *       "drain": false,
                     *       "tasks": []
                     *     }
                     */
                    "application/json": components["schemas"]["WorkerResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getWorker: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                worker_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WorkerDetail"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    removeWorker: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                worker_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    sendHeartbeat: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                worker_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["HeartbeatRequest"] | null;
            };
        };
        responses: {
            /** @description Success */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "id": "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11",
                     *       "last_heartbeat": "2026-03-01T12:00:00.000000Z",
                     *       "heartbeat_interval_seconds": 20,
                     *       "drain": false,
                     *       "tasks": [
                     *         {
                     *           "id": "0198c5a5-0b42-7f20-8a77-3c1d9e4f5a60",
                     *           "verdict": "continue"
                     *         }
                     *       ]
                     *     }
                     */
                    "application/json": components["schemas"]["WorkerResponse"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    drainWorker: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                worker_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WorkerResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    removeJobFromWorker: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                worker_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found`, `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listRoomWorkers: {
        parameters: {
            query?: {
                limit?: number;
                offset?: number;
            };
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WorkerPage"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    createWorkerToken: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["WorkerTokenRequest"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WorkerTokenResponse"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `no-tokens` */
            501: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listJobs: {
        parameters: {
            query?: {
                limit?: number;
                offset?: number;
            };
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JobPage"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    registerJob: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["JobRegisterRequest"];
            };
        };
        responses: {
            /** @description The job was active already */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JobResponse"];
                };
            };
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "id": "0198c5a4-7a0e-7b02-b6c1-0e2f7d9a8c33",
                     *       "room_id": "@global",
                     *       "category": "modifiers",
                     *       "name": "Rotate",
                     *       "full_name": "@global:modifiers:Rotate",
                     *       "schema": {
                     *         "type": "object",
                     *         "properties": {
                     *           "angle": {
                     *             "type": "number",
                     *             "description": "In degrees."
                     *           }
                     *         },
                     *         "required": [
                     *           "angle"
                     *         ]
                     *       },
                     *       "workers": [
                     *         "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11"
                     *       ],
                     *       "worker_id": "0198c5a4-7a10-7c31-9d3e-5b8f0f6a2b11",
                     *       "paused": false,
                     *       "paused_until": null,
                     *       "unserved_since": null,
                     *       "version": 1,
                     *       "versions": [
                     *         {
                     *           "version": 1,
                     *           "current": true,
                     *           "workers": 1,
                     *           "pending": 0,
                     *           "scheduled": 0
                     *         }
                     *       ],
                     *       "max_attempts": 3,
                     *       "retry_on": [
                     *         "error",
                     *         "timeout",
                     *         "worker_lost"
                     *       ],
                     *       "non_retryable": [
                     *         "ValueError"
                     *       ],
                     *       "backoff": {
                     *         "base_seconds": 1,
                     *         "factor": 2,
                     *         "cap_seconds": 60,
                     *         "jitter": 0
                     *       },
                     *       "max_crashes": 3,
                     *       "timeout_seconds": 600,
                     *       "expected_seconds": 600,
                     *       "start_timeout_seconds": 60,
                     *       "max_in_flight": null,
                     *       "max_pending": null,
                     *       "max_pending_per_room": 1000,
                     *       "limits": [
                     *         {
                     *           "name": null,
                     *           "key": "/user_id",
                     *           "max_in_flight": 2,
                     *           "rate": null
                     *         }
                     *       ],
                     *       "priority": 0,
                     *       "without_workers": "queue",
                     *       "keep": {
                     *         "completed": 604800,
                     *         "failed": "forever",
                     *         "cancelled": null
                     *       },
                     *       "requires": {
                     *         "memory_gb": {
                     *           ">=": 40
                     *         }
                     *       },
                     *       "cost": 1,
                     *       "prefer": {
                     *         "host": "node7"
                     *       },
                     *       "batch": {
                     *         "max": 32,
                     *         "wait_seconds": 0.2,
                     *         "key": "/model"
                     *       }
                     *     }
                     */
                    "application/json": components["schemas"]["JobResponse"];
                };
            };
            /** @description `invalid-category`, `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `limit-not-found`, `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress`, `schema-conflict` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-payload`, `invalid-request`, `invalid-schema` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listJobTasks: {
        parameters: {
            query?: {
                status?: components["schemas"]["TaskStatus"];
                tag?: string;
                limit?: number;
                offset?: number;
            };
            header?: never;
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskPage"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    pauseJob: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["PauseRequest"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JobResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    resumeJob: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JobResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getJob: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JobResponse"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    putJob: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["JobPutRequest"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JobResponse"];
                };
            };
            /** @description The job is new, or was soft-deleted before */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JobResponse"];
                };
            };
            /** @description `invalid-category`, `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found`, `limit-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress`, `schema-conflict` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request`, `invalid-schema` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    deleteJob: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listGroups: {
        parameters: {
            query?: {
                room?: string;
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GroupEntries"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    createGroup: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["GroupRequest"];
            };
        };
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GroupResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-payload`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-job-not-configured`, `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getGroup: {
        parameters: {
            query?: never;
            header?: {
                /** @description `wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`. */
                Prefer?: string;
            };
            path: {
                group_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Success */
            200: {
                headers: {
                    /** @description `wait=N`, if the request preferred to wait. */
                    "Preference-Applied"?: string;
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "id": "01a21ee2-5777-74cb-b3e8-12732f527a0b",
                     *       "room": "lab",
                     *       "name": "all angles",
                     *       "created_by": "ada",
                     *       "created_at": "2026-03-01T12:00:00.000000Z",
                     *       "sealed": true,
                     *       "expires_at": null,
                     *       "ended_at": null,
                     *       "total": 4,
                     *       "counts": {
                     *         "pending": 1,
                     *         "claimed": 0,
                     *         "running": 1,
                     *         "completed": 2,
                     *         "failed": 0,
                     *         "cancelled": 0
                     *       },
                     *       "progress": 0.625,
                     *       "failures": []
                     *     }
                     */
                    "application/json": components["schemas"]["GroupResponse"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `group-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    updateGroup: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                group_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["GroupUpdate"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GroupResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `group-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    readGroupResults: {
        parameters: {
            query?: {
                /** @description Only if the group has submitted this task at its end */
                on_end_task?: string;
            };
            header?: never;
            path: {
                group_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A `GroupResult` in each line, in the order of submission */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
                    "application/x-ndjson": string;
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `group-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getSchedule: {
        parameters: {
            query?: {
                next?: number;
            };
            header?: never;
            path: {
                schedule: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ScheduleResponse"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `schedule-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    putSchedule: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                schedule: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ScheduleRequest"];
            };
        };
        responses: {
            /** @description The schedule was replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ScheduleResponse"];
                };
            };
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ScheduleResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-payload`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    deleteSchedule: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                schedule: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `schedule-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    updateSchedule: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                schedule: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ScheduleUpdate"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ScheduleResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `schedule-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listSchedules: {
        parameters: {
            query?: {
                limit?: number;
                offset?: number;
            };
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SchedulePage"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    runSchedule: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
                /** @description The trace context of the submit (W3C Trace Context), kept with the task for its workers. An invalid one is ignored. */
                traceparent?: string;
            };
            path: {
                schedule: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The task that holds the unique key already */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `group-not-found`, `job-not-found`, `schedule-not-found`, `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `duplicate-task`, `group-sealed`, `no-workers-available`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-payload`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-job-not-configured`, `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listAllSchedules: {
        parameters: {
            query?: {
                room?: string;
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ScheduleEntries"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getWebhook: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                webhook: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WebhookResponse"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `webhook-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    putWebhook: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                webhook: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["WebhookRequest"];
            };
        };
        responses: {
            /** @description The webhook was replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WebhookResponse"];
                };
            };
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WebhookResponse"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    deleteWebhook: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                webhook: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `webhook-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listWebhooks: {
        parameters: {
            query?: {
                limit?: number;
                offset?: number;
            };
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WebhookPage"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    testWebhook: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                webhook: string;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Delivery"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `webhook-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listDeliveries: {
        parameters: {
            query?: {
                /** @description The name of a webhook */
                webhook?: string;
                /** @description The id of a task */
                task?: string;
                state?: "waiting" | "delivered" | "failed";
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Deliveries"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    repeatDelivery: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                delivery: number;
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Delivery"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `delivery-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getLimit: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                limit: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LimitEntry"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `limit-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    putLimit: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                limit: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LimitValues"];
            };
        };
        responses: {
            /** @description The limit was replaced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LimitEntry"];
                };
            };
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LimitEntry"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    deleteLimit: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                limit: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `limit-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listLimits: {
        parameters: {
            query?: {
                limit?: number;
                offset?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LimitPage"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    followTask: {
        parameters: {
            query?: {
                /** @description A token of `/tasks/{task_id}/events/token` */
                token?: string;
                /** @description Continue after the event with this id */
                after?: number;
            };
            header?: {
                /** @description The same, as browsers send it when they reconnect; it takes precedence over `after` */
                "Last-Event-ID"?: number;
                /** @description `wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`. */
                Prefer?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The stream, or with `Accept: application/json` the events so far */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TaskEvents"];
                    "text/event-stream": string;
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    followRoom: {
        parameters: {
            query?: {
                /** @description A token of `/rooms/{room_id}/events/token` */
                token?: string;
                /** @description Continue after the event with this id */
                after?: number;
            };
            header?: {
                /** @description The same, as browsers send it when they reconnect; it takes precedence over `after` */
                "Last-Event-ID"?: number;
                /** @description `wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`. */
                Prefer?: string;
            };
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The stream, or with `Accept: application/json` the events so far */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RoomEvents"];
                    "text/event-stream": string;
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    followGroup: {
        parameters: {
            query?: {
                /** @description A token of `/groups/{group_id}/events/token` */
                token?: string;
                /** @description Continue after the event with this id */
                after?: number;
            };
            header?: {
                /** @description The same, as browsers send it when they reconnect; it takes precedence over `after` */
                "Last-Event-ID"?: number;
                /** @description `wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`. */
                Prefer?: string;
            };
            path: {
                group_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The stream, or with `Accept: application/json` the group, if it has changed */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GroupEvents"];
                    "text/event-stream": string;
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `group-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    createTaskStreamToken: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Created */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    /**
                     * @example {
                     *       "token": "token-of-the-stream",
                     *       "expires_at": "2026-03-01T12:05:00.000000Z"
                     *     }
                     */
                    "application/json": components["schemas"]["StreamToken"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    createRoomStreamToken: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StreamToken"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    createGroupStreamToken: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                group_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StreamToken"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `group-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listProviders: {
        parameters: {
            query?: {
                limit?: number;
                offset?: number;
            };
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProviderPage"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    registerProvider: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ProviderRegisterRequest"];
            };
        };
        responses: {
            /** @description The provider existed already */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProviderResponse"];
                };
            };
            /** @description Successful Response */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProviderResponse"];
                };
            };
            /** @description `invalid-category`, `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getProvider: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProviderResponse"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `provider-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    readProvider: {
        parameters: {
            query?: never;
            header?: {
                /** @description `wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`. */
                Prefer?: string;
                /** @description The ETag that the client has. */
                "If-None-Match"?: string;
            };
            path: {
                room_id: string;
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The provider result, with the provider's content type */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": unknown;
                    "application/octet-stream": string;
                    "*/*": string;
                };
            };
            /** @description `If-None-Match` has the current ETag */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `invalid-room-id`, `provider-execution-failed` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `provider-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `provider-failed` */
            502: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `provider-not-connected`, `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `provider-timeout` */
            504: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    removeProvider: {
        parameters: {
            query?: {
                worker_id?: string;
            };
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                provider_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `provider-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    claimProviderRequest: {
        parameters: {
            query?: never;
            header?: {
                /** @description `wait=N`: wait up to N seconds (RFC 7240). The response has `Preference-Applied`. */
                Prefer?: string;
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ProviderClaimRequest"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProviderClaimResponse"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `worker-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    uploadProviderResult: {
        parameters: {
            query?: never;
            header: {
                /** @description The id of the provider request */
                "X-Request-Hash": string;
                /** @description `ok` or `error` */
                "X-Result-Status"?: string;
                /** @description The worker that uploads */
                "X-Worker-ID"?: string;
            };
            path: {
                provider_id: string;
            };
            cookie?: never;
        };
        /** @description The bytes, with any `Content-Type`, which is kept. */
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Successful Response */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `provider-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `stale-result` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    readTaskResult: {
        parameters: {
            query?: {
                /** @description A task that has waited for this one, and whose worker reads it */
                successor?: string;
            };
            header?: {
                /** @description The wanted bytes: `bytes=0-1023`. */
                Range?: string;
                /** @description `Range` applies if this is the current ETag. */
                "If-Range"?: string;
                /** @description The ETag of a result that the client has. */
                "If-None-Match"?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The result: the JSON of the report, or the bytes that were uploaded, with their type */
            200: {
                headers: {
                    /** @description The version of the result. */
                    ETag?: string;
                    /** @description Whether a browser may show it, and its file name. */
                    "Content-Disposition"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": unknown;
                    "application/octet-stream": string;
                    "*/*": string;
                };
            };
            /** @description The range that `Range` wants */
            206: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
                    "*/*": string;
                };
            };
            /** @description `If-None-Match` has the current ETag */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `result-not-found`, `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `result-expired` */
            410: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `range-not-satisfiable` */
            416: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    uploadTaskResult: {
        parameters: {
            query: {
                /** @description The attempt of the claim. */
                attempt: number;
                /** @description The file name for a client that saves the result. */
                filename?: string;
            };
            header?: never;
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        /** @description The bytes, with any `Content-Type`, which is kept. */
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StoredResult"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `invalid-task-transition`, `stale-report` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `too-many-requests` */
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `result-store-full` */
            507: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    headTaskResult: {
        parameters: {
            query?: never;
            header?: {
                /** @description The wanted bytes: `bytes=0-1023`. */
                Range?: string;
                /** @description `Range` applies if this is the current ETag. */
                "If-Range"?: string;
                /** @description The ETag of a result that the client has. */
                "If-None-Match"?: string;
            };
            path: {
                task_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The result: the JSON of the report, or the bytes that were uploaded, with their type */
            200: {
                headers: {
                    /** @description The version of the result. */
                    ETag?: string;
                    /** @description Whether a browser may show it, and its file name. */
                    "Content-Disposition"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The range that `Range` wants */
            206: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `If-None-Match` has the current ETag */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `result-not-found`, `task-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `result-expired` */
            410: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `range-not-satisfiable` */
            416: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getSweeper: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SweeperDetail"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    updateSweeper: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SweeperUpdate"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SweeperDetail"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getSettings: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Settings"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getRetention: {
        parameters: {
            query?: {
                job?: string;
                completed?: string;
                failed?: string;
                cancelled?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeptTasks"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    previewSweeper: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SweeperPreview"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getCaller: {
        parameters: {
            query?: {
                room?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Me"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getVersion: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Version"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listAllJobs: {
        parameters: {
            query?: {
                room?: string;
                category?: string;
                paused?: boolean;
                deleted?: boolean;
                name?: string;
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["JobEntries"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listRooms: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RoomEntries"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    pauseRoom: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["PauseRequest"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PauseState"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `conflict`, `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    resumeRoom: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PauseState"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    pauseAllRooms: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["PauseRequest"] | null;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PauseState"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    resumeAllRooms: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PauseState"];
                };
            };
            /** @description `invalid-idempotency-key` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listPauses: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PauseEntries"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listAllProviders: {
        parameters: {
            query?: {
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ProviderEntries"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getMetrics: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The metrics */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                    "application/openmetrics-text": string;
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getOverview: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Overview"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    followOverview: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The stream */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": string;
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getDemand: {
        parameters: {
            query?: {
                /** @description Full names of jobs. */
                job?: string[];
                /** @description Rooms whose jobs count. */
                room?: string[];
                /** @description The labels of a worker, like `gpu=a100,memory_gb=80`: count only tasks that it may run, and workers that have these labels. Empty: a worker without labels. */
                labels?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Demand"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getJobDemand: {
        parameters: {
            query?: {
                /** @description The labels of a worker, like `gpu=a100,memory_gb=80`: count only tasks that it may run, and workers that have these labels. Empty: a worker without labels. */
                labels?: string;
            };
            header?: never;
            path: {
                /** @description room:category:name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Demand"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getRoomOverview: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                room_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RoomOverview"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    getStatistics: {
        parameters: {
            query?: {
                /** @description room:category:name */
                job?: string;
                /** @description 60 or 3600 seconds */
                resolution?: number;
                /** @description By default 60 intervals ago. */
                since?: string;
                until?: string;
                /** @description A tag of tasks, instead of a job. */
                tag?: string;
                /** @description The room of the tasks with the tag. */
                room?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Statistics"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `job-not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    listAuditEntries: {
        parameters: {
            query?: {
                room?: string;
                actor?: string;
                /** @description Such as `job.pause`. */
                action?: string;
                limit?: number;
                /** @description `next` of the last response */
                cursor?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AuditTrail"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    previewBulkAction: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BulkPreviewRequest"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BulkPreview"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    applyBulkAction: {
        parameters: {
            query?: never;
            header?: {
                /** @description A string or token of 1 to 255 characters. The server applies requests of one caller with the same key once; a repeat gets the first response. */
                "Idempotency-Key"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BulkRequest"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BulkResult"];
                };
            };
            /** @description `invalid-idempotency-key`, `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `upload-stalled` */
            408: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `request-in-progress` */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `content-too-large` */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `idempotency-key-reused`, `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `locked` */
            423: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    findIds: {
        parameters: {
            query?: {
                /** @description The first 4 to 36 characters of an id. */
                prefix?: string;
                room?: string[];
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PrefixMatches"];
                };
            };
            /** @description `invalid-room-id` */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    explainProblem: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @example task-not-found */
                problem_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                };
            };
            /** @description `not-found` */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    checkLiveness: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        [key: string]: string;
                    };
                };
            };
        };
    };
    checkReadiness: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Readiness"];
                };
            };
            /** @description Not ready; `checks` has the reasons */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Readiness"];
                };
            };
        };
    };
    getMetricsAtRoot: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The metrics */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                    "application/openmetrics-text": string;
                };
            };
            /** @description `unauthorized` */
            401: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `forbidden` */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `invalid-request` */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `internal-server-error` */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
            /** @description `service-unavailable` */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
}
