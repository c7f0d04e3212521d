// What a page knows of a task or of a room, kept current by an event stream. It needs no React.
import type { LogLine, NumberedLine, Progress, Queue, TaskResponse, TaskStatusEvent } from "zndraw-joblib";

export interface TaskState {
  task?: TaskResponse;
  progress?: Progress;
  log: readonly LogLine[];
  /** Whether the server cannot be reached: what is shown may be old. */
  isAway?: boolean;
  error?: Error;
}

export interface RoomState {
  /** The newest tasks, newest first. */
  tasks: readonly TaskStatusEvent[];
  error?: Error;
}

const MAX_LINES = 1000;
const MAX_TASKS = 100;

/** Pass each state of a task to `show`, until its end or the signal is aborted. */
export async function watchTask(queue: Queue, id: string, signal: AbortSignal, show: (state: TaskState) => void): Promise<void> {
  let state: TaskState = { log: [] };
  let [attempt, last] = [0, 0]; // of the lines in `state.log`
  const change = (changes: Partial<TaskState>) => {
    // The component has another task by now, or is gone.
    if (!signal.aborted) show((state = { ...state, ...changes }));
  };
  try {
    for await (const sent of queue.follow(id, { signal, onConnection: (isOpen) => change({ isAway: !isOpen }) })) {
      if (sent.event === "snapshot") {
        change({ task: sent.data, ...(sent.data.progress && { progress: sent.data.progress }) });
        if (!sent.data.attempt) continue;
        // The stream has only the lines that come after the snapshot.
        const lines: NumberedLine[] = [];
        for await (const line of queue.logs(id, { signal, attempt: sent.data.attempt })) lines.push(line);
        [attempt, last] = [sent.data.attempt, lines.at(-1)?.n ?? 0];
        change({ log: lines.slice(-MAX_LINES) });
      } else if (sent.event === "progress") change({ progress: sent.data.data.progress });
      else if (sent.event === "log") {
        const { first, lines } = sent.data.data;
        const isNext = sent.data.data.attempt !== attempt;
        const fresh = isNext ? lines : lines.slice(Math.max(0, last + 1 - first));
        [attempt, last] = [sent.data.data.attempt, first + lines.length - 1];
        change({ log: [...state.log, ...fresh].slice(-MAX_LINES) });
      }
      else if (sent.event === "status") change({ task: { ...state.task!, ...sent.data.data } });
      else if (sent.event === "end") change({ task: await queue.read(id, { signal }) }); // with its result
    }
  } catch (error) {
    change({ error: error as Error });
  }
}

/** Pass each state of a room's tasks to `show`, until the signal is aborted. */
export async function watchRoom(queue: Queue, room: string, signal: AbortSignal, show: (state: RoomState) => void): Promise<void> {
  let tasks: readonly TaskStatusEvent[] = [];
  try {
    for await (const sent of queue.followRoom(room, { signal })) {
      if (sent.event === "snapshot") tasks = sent.data.tasks;
      else if (sent.event === "status") tasks = updated(tasks, sent.data.data);
      else continue;
      if (!signal.aborted) show({ tasks });
    }
  } catch (error) {
    if (!signal.aborted) show({ tasks, error: error as Error });
  }
}

type SentStatus = Partial<TaskStatusEvent> & Pick<TaskStatusEvent, "id" | "name" | "room_id" | "status" | "created_at">;

function updated(tasks: readonly TaskStatusEvent[], sent: SentStatus): readonly TaskStatusEvent[] {
  // Fields that are null are not sent.
  const nulls = { started_at: null, completed_at: null, queue_position: null, worker_id: null, error: null };
  const task: TaskStatusEvent = { ...nulls, ...sent };
  const isKnown = tasks.some((one) => one.id === task.id);
  return isKnown ? tasks.map((one) => (one.id === task.id ? task : one)) : [task, ...tasks].slice(0, MAX_TASKS);
}
