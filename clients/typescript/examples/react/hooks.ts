// Hooks for React: a component shows a task, or the tasks of a room, as they are now. Copy both files into your app.
import { useEffect, useState } from "react";
import type { Queue } from "zndraw-joblib";
import { watchRoom, watchTask, type RoomState, type TaskState } from "./live.js";

const NO_TASK: TaskState = { log: [] };
const NO_TASKS: RoomState = { tasks: [] };

/** Return a task with its progress and its log. Make the queue once, outside of components. */
export function useTask(queue: Queue, id: string | undefined): TaskState {
  const [shown, setShown] = useState({ id, state: NO_TASK });
  useEffect(() => {
    if (id === undefined) return;
    const controller = new AbortController();
    void watchTask(queue, id, controller.signal, (state) => setShown({ id, state }));
    return () => controller.abort();
  }, [queue, id]);
  // The first render with another id has the state of the former task still.
  return shown.id === id ? shown.state : NO_TASK;
}

/** Return the newest tasks of a room. */
export function useTasks(queue: Queue, room: string): RoomState {
  const [shown, setShown] = useState({ room, state: NO_TASKS });
  useEffect(() => {
    const controller = new AbortController();
    void watchRoom(queue, room, controller.signal, (state) => setShown({ room, state }));
    return () => controller.abort();
  }, [queue, room]);
  return shown.room === room ? shown.state : NO_TASKS;
}
