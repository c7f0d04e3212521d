// Components that use the hooks: a list of a room's tasks, and one task with its progress.
import { useState } from "react";
import { Queue } from "zndraw-joblib";
import { useTask, useTasks } from "./hooks.js";

const queue = new Queue({ url: "http://127.0.0.1:8000", token: () => sessionStorage.getItem("token") ?? "" });

export function Tasks({ room }: { room: string }) {
  const { tasks, error } = useTasks(queue, room);
  const [id, setId] = useState<string>();
  const [refusal, setRefusal] = useState<Error>();
  const submit = () =>
    queue.submit("area", { width: 3 }, { room }).then(
      (task) => setId(task.id),
      (error: Error) => setRefusal(error),
    );
  return (
    <>
      <p role="alert">{(error ?? refusal)?.message}</p>
      <button onClick={submit}>Submit</button>
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
  const { task, progress, log, isAway, error } = useTask(queue, id);
  const [refusal, setRefusal] = useState<Error>();
  return (
    <section>
      <h2>{task?.status}</h2>
      {isAway && <p role="status">The server cannot be reached; trying again</p>}
      <p role="alert">{(error ?? refusal)?.message}</p>
      {progress && <progress value={Number(progress.current ?? 0)} max={Number(progress.total ?? 1)} />}
      <pre>{log.map((line) => line.text).join("\n")}</pre>
      <button onClick={() => queue.cancel(id).catch(setRefusal)}>Cancel</button>
    </section>
  );
}
