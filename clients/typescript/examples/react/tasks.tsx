// Components that use the hooks: a list of a room's tasks, and one task with its progress.
import { useState } from "react";
import { Queue } from "zndraw-joblib";
import { useTask, useTasks } from "./hooks.js";

const queue = new Queue({ url: "http://127.0.0.1:8000", token: () => sessionStorage.getItem("token") ?? "" });

export function Tasks({ room }: { room: string }) {
  const { tasks, error } = useTasks(queue, room);
  const [id, setId] = useState<string>();
  return (
    <>
      {error && <p role="alert">{error.message}</p>}
      <button onClick={async () => setId((await queue.submit("area", { width: 3 }, { room })).id)}>Submit</button>
      <ul>
        {tasks.map((task) => (
          <li key={task.id} onClick={() => setId(task.id)}>
            {task.name}: {task.status}
          </li>
        ))}
      </ul>
      {id !== undefined && <Task id={id} />}
    </>
  );
}

function Task({ id }: { id: string }) {
  const { task, progress, log, error } = useTask(queue, id);
  return (
    <section>
      <h2>{task?.status ?? error?.message}</h2>
      {progress && <progress value={Number(progress.current ?? 0)} max={Number(progress.total ?? 1)} />}
      <pre>{log.map((line) => line.text).join("\n")}</pre>
      <button onClick={() => queue.cancel(id)}>Cancel</button>
    </section>
  );
}
