// Follows a task, and prints the number and the kind of each event.
import { getEventListeners } from "node:events";
import { Queue } from "zndraw-joblib";

const [url, token, id] = process.argv.slice(2) as [string, string, string];
const queue = new Queue({ url, token });
const { signal } = new AbortController();
const connections: string[] = [];
const onConnection = (isOpen: boolean) => connections.push(isOpen ? "open" : "lost");
for await (const sent of queue.follow(id, { signal, onConnection })) {
  switch (sent.event) {
    case "log":
      process.stdout.write(`log ${sent.data.data.lines.map((line) => line.text).join(" ")}\n`);
      break;
    default:
      process.stdout.write(`${sent.event}\n`);
  }
}
process.stdout.write(`${connections.slice(0, 3).join(" ")}\n`);
process.stdout.write(`listeners ${getEventListeners(signal, "abort").length}\n`);
