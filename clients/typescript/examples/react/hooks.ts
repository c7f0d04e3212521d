// Hooks for React: a component shows a task, or the tasks of a room, as they are now. Copy both files into your app.
import { useEffect, useState } from "react";
import type { Queue } from "zndraw-joblib";
import { watchRoom, watchTask, type RoomState, type TaskState } from "./live.js";

/** Return a task with its progress and its log. Make the queue once, outside of components. */
export function useTask(queue: Queue, id: string | undefined): TaskState {
  const [state, setState] = useState<TaskState>({ log: [] });
  useEffect(() => {
    setState({ log: [] });
    if (id === undefined) return;
    const controller = new AbortController();
    void watchTask(queue, id, controller.signal, setState);
    return () => controller.abort();
  }, [queue, id]);
  return state;
}

/** Return the newest tasks of a room. */
export function useTasks(queue: Queue, room: string): RoomState {
  const [state, setState] = useState<RoomState>({ tasks: [] });
  useEffect(() => {
    setState({ tasks: [] });
    const controller = new AbortController();
    void watchRoom(queue, room, controller.signal, setState);
    return () => controller.abort();
  }, [queue, room]);
  return state;
}
